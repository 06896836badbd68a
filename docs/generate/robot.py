"""Draws the state machine of docs/robot.md from the code.

python -m docs.generate.robot
"""

from __future__ import annotations

from pathlib import Path

from real_robot.safety.states import FAULTS, TRANSITIONS, Event, Reason, State, event_of

PAGE = Path("docs/robot.md")
BEGIN, END = "<!-- made by python -m docs.generate.robot: {} -->", "<!-- end -->"


def diagram() -> str:
    """Mermaid; CLOSE leads from everywhere to DISCONNECTED and is left out."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.DISCONNECTED.name}"]
    edges = dict[tuple[State, State], list[str]]()
    for (before, event), after in sorted(TRANSITIONS.items()):
        if event is not Event.CLOSE:
            edges.setdefault((before, after), []).append(event.name.lower())
    for (before, after), events in edges.items():
        lines.append(f"    {before.name} --> {after.name}: {', '.join(events)}")
    return "\n".join([*lines, "```"])


def reasons() -> str:
    """What stops a robot, and how hard."""
    lines = ["| reason | what it is | leads to |", "| --- | --- | --- |"]
    for reason in Reason:
        kind = {Event.STOP: "SOFT_STOP", Event.FAULT: "FAULT", Event.ESTOP: "ESTOP"}
        assert (reason in FAULTS) == (event_of(reason) is Event.FAULT)
        lines.append(f"| {reason.name} | {reason.text} | {kind[event_of(reason)]} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """`text` with what is made put between its marks."""
    for name, made in (("states", diagram()), ("reasons", reasons())):
        begin = BEGIN.format(name)
        head, rest = text.split(begin, 1)
        text = f"{head}{begin}\n\n{made}\n\n{END}{rest.split(END, 1)[1]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
