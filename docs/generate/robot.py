"""Generate the state machine and the table of reasons in docs/robot.md from the code.

python -m docs.generate.robot
"""

from __future__ import annotations

from pathlib import Path

from real_robot.safety.states import FAULTS, TRANSITIONS, Event, Reason, State, event_of

PAGE = Path("docs/robot.md")
BEGIN, END = "<!-- made by python -m docs.generate.robot: {} -->", "<!-- end -->"


def diagram() -> str:
    """Return the Mermaid diagram of the states. CLOSE, possible in every state, is left out."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.DISCONNECTED.name}"]
    edges = dict[tuple[State, State], list[str]]()
    for (before, event), after in sorted(TRANSITIONS.items()):
        if event is not Event.CLOSE:
            edges.setdefault((before, after), []).append(event.name.lower())
    for (before, after), events in edges.items():
        lines.append(f"    {before.name} --> {after.name}: {', '.join(events)}")
    return "\n".join([*lines, "```"])


def reasons() -> str:
    """Return the table of reasons to stop."""
    lines = ["| reason | meaning | leads to |", "| --- | --- | --- |"]
    for reason in Reason:
        kind = {Event.STOP: "SOFT_STOP", Event.FAULT: "FAULT", Event.ESTOP: "ESTOP"}
        assert (reason in FAULTS) == (event_of(reason) is Event.FAULT)
        lines.append(f"| {reason.name} | {reason.text} | {kind[event_of(reason)]} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the page with its generated parts replaced."""
    for name, part in (("states", diagram()), ("reasons", reasons())):
        begin = BEGIN.format(name)
        head, tail = text.split(begin, 1)
        text = f"{head}{begin}\n\n{part}\n\n{END}{tail.split(END, 1)[1]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
