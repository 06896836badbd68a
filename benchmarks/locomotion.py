"""Evidence on our own data of D4RL's kind: its quality, and what algorithms make of it.

    python -m benchmarks.locomotion [runners=hopper] [algorithms=bc,iql,…] [qualities=…] [seeds=2]
    python -m benchmarks.locomotion table

Runs go to runs/locomotion and resume. `table` writes benchmarks/results/locomotion from what is
finished, beside CORL's scores on D4RL's data and D4RL's own mean returns.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from benchmarks.evidence import budget, keep, kept, publish, spread
from offline_rl.training.train import train
from offline_rl.utils.text import table

UPDATES = {"bc": 20_000, "iql": 20_000, "spot": 4_000, "cql": 3_000, "edac": 3_000}
UPDATES |= {"rebrac": 2_500, "f_dvl": 2_500}  # of others 10,000
RUNNERS = ("hopper", "walker2d", "halfcheetah")
QUALITIES = ("medium", "medium-replay", "medium-expert")
ALGORITHMS = "bc,td3_bc,iql,awac,xql,spot,rebrac,f_dvl,cql,edac"
D4RL_RETURNS = {  # its v2 files, mean over episodes, as code of Decision Transformers lists them
    "hopper": {"random": 18.4, "medium": 1422.1, "expert": 3511.4},
    "walker2d": {"random": 1.9, "medium": 2852.1, "expert": 4920.5},
    "halfcheetah": {"random": -288.8, "medium": 4770.3, "expert": 10656.4},
}
RESULTS = Path("benchmarks/results/locomotion")
NOTE = """
Ours: mean ± standard deviation (ddof 0) over two seeds of the normalised score (D4RL's references,
here only a scale) of the last policy after the updates given, 10 episodes; settings as in
configs/algorithm. In brackets CORL's: D4RL's v2 data, 1,000,000 updates, the last policy, 4 seeds
(tinkoff-ai/CORL, AWAC as corrected by corl-team/CORL). The data differ, so the columns may agree in
their order only: a medium set here is another policy's. Ours had a fiftieth of the published
updates or less (hopper: a tenth), as many as two cores finish in an hour and a half.

The literature's order on replay data, ensembles above CQL above BC, does not appear, nor can it
after 3,000 updates: EDAC and CQL still stand where BC does, 2 on halfcheetah, 7 to 10 on walker2d.
What does appear is the gain of choosing among the data's actions: on halfcheetah's replay AWAC
(37), IQL (32) and XQL (29) are far above BC (2) and the data's mean (18). BC stands still there: 36
of its 100 episodes hardly move, and of the slow rows, which a start leads to, four fifths are
theirs; on an earlier set of the recipe the clone of the better half (`algorithm.top_fraction=0.5`)
scored 36. On walker2d's replay, whose policies mostly fall, nothing is far from the data.

On the other sets BC is near the data's mean, on walker2d-medium-expert above it; AWAC as well, but
there, and on halfcheetah-medium-expert it is above both. What maximises a value of its own
(TD3+BC, SPOT, ReBRAC) was still on its way up, and mostly below BC, where the published order after
1,000,000 updates is the reverse. IQL and XQL on walker2d-medium fall at once: over all rows IQL's
squared error to the data's actions is 0.08, near TD3+BC's 0.07, but at the episodes' first step it
is 0.14, TD3+BC's 0.04. TD3+BC's observations are normalised, IQL's as published are not; with them
normalised as well (`algorithm.normalise_observations=true`, the rest the same) IQL scores 51 ± 14
there (two seeds, not among the files here).

hopper-medium-replay is of earlier, longer runs: IQL is above BC there, whose 29.1 is a draw: once
trained, its evaluations lie between 5 and 19, only the last at 49 and 9.
"""


def datasets() -> str:
    """The mean return of each set that was made, beside D4RL's."""
    header = ["runner", "quality", "rows", "mean return", "score", "D4RL's v2"]
    body = []
    for runner in RUNNERS:
        for quality in ("random", *QUALITIES, "expert"):
            found = [*Path("datasets").glob(f"*/{runner}-{quality}.json")]
            if not found:
                continue
            card = json.loads(found[0].read_text())
            theirs = D4RL_RETURNS[runner].get(quality)
            cells = [runner, quality, f"{card['rows']:,}", f"{card['return_mean']:,.1f}"]
            cells += [f"{card['score_mean']:.1f}", f"{theirs:,.1f}" if theirs is not None else ""]
            body.append(cells)
    return table(header, body, markdown=True)


def scores() -> str:
    """Every algorithm on every set, CORL's score in brackets."""
    published: dict[tuple[str, str], str] = {}
    with (Path(__file__).parent / "published" / "d4rl.csv").open() as file:
        for row in csv.DictReader(file):
            published[row["dataset"], row["algorithm"]] = f"{float(row['score']):.1f}"
    found: dict[tuple[str, int], dict[str, str]] = {}
    sets: dict[str, float] = {}
    for results in kept(RESULTS):
        name, algorithm = results[0]["task"].removeprefix("gym/"), results[0]["algorithm"]
        row = found.setdefault((algorithm, results[0]["num_updates"]), {})
        row[name] = spread([r["score"] for r in results])
        sets[name] = results[0]["behaviour_score"]
    body = [["data", "", *(f"{score:.1f}" for score in sets.values())]]
    for (algorithm, count), ours in sorted(found.items()):
        cells = [algorithm, f"{count:,}"]
        for name in sets:
            theirs = published.get((f"{name}-v2", algorithm))
            cells.append(
                f"{ours[name]} ({theirs})" if name in ours and theirs else ours.get(name, "")
            )
        body.append(cells)
    header = ["algorithm", "updates", *sets]
    return table(header, body, markdown=True)


def page() -> str:
    """The sets and the scores, from the cards and the runs that are kept."""
    text = "# Our data of D4RL's kind\n\n`python -m benchmarks.locomotion`\n\n## The sets\n\n"
    text += datasets() + "\n\nScores are on D4RL's scale.\n\n## Algorithms\n\n"
    return text + scores() + "\n" + NOTE


def main(arguments: list[str]) -> None:
    if arguments == ["table"]:
        keep(RESULTS)
        publish(RESULTS, page)
        return
    options = {"runners": "hopper", "algorithms": ALGORITHMS, "qualities": ",".join(QUALITIES)}
    options |= {"seeds": "2", "precision": "bf16"}
    options |= dict(argument.split("=", 1) for argument in arguments)
    for algorithm in options["algorithms"].split(","):
        for runner in options["runners"].split(","):
            for quality in options["qualities"].split(","):
                updates, task = UPDATES.get(algorithm, 10_000), f"gym/{runner}-{quality}"
                train(
                    algorithm=algorithm,
                    task=task,
                    seeds=int(options["seeds"]),
                    precision=options["precision"],
                    out="runs/locomotion",
                    **budget(algorithm, updates, task) | {"eval_every": updates // 5},
                )


if __name__ == "__main__":
    main(sys.argv[1:])
