"""Evidence on NeoRL-2: BC, TD3+BC, IQL and CQL, three stacked seeds, beside the published numbers.

    python -m benchmarks.neorl2 [tasks=DMSD,Pipeline] [algorithms=bc,iql]

Runs go to runs/neorl2 and resume; the tables are made from them by `offline-rl report runs/neorl2`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from offline_rl.data.find import data_folder
from offline_rl.train import train

SEEDS = [7, 42, 210]  # those of the published table
UPDATES = {"cql": 20_000}
EPISODES = {"SafetyHalfCheetah": 20, "DMSD": 100, "Pipeline": 50}


def main(arguments: list[str]) -> None:
    options = {"tasks": "DMSD,SafetyHalfCheetah,Pipeline", "algorithms": "bc,td3_bc,iql,cql"}
    options |= {"precision": "auto", "seeds": "", "name": "default"}
    options |= dict(argument.split("=", 1) for argument in arguments)
    seeds = [int(s) for s in options["seeds"].split(",") if s] or SEEDS
    for algorithm in options["algorithms"].split(","):
        for task in options["tasks"].split(","):
            updates = UPDATES.get(algorithm, 50_000)
            keys: dict[str, Any] = {}
            if algorithm == "cql":  # cloning first for 4 % of the updates, as in the published runs
                keys["pretrain_updates"] = updates // 25
            if (
                task == "Pipeline"
            ):  # the published file is not to be had: substitute data, so labelled
                keys["dataset"] = str(
                    Path(data_folder()) / "neorl2/Pipeline/Pipeline-substitute-train.npz"
                )
            train(
                algorithm=algorithm,
                task=f"neorl2/{task}",
                seeds=seeds,
                num_updates=updates,
                eval_every=updates // 10,
                checkpoint_every=updates // 10,
                eval_episodes=EPISODES[task],
                precision=options["precision"],
                out="runs/neorl2",
                name="substitute-data" if task == "Pipeline" else options["name"],
                **keys,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
