"""Run one contender in a separate process: python -m benchmarks.speed.worker '<job as JSON>'."""

from __future__ import annotations

import json
import sys

from benchmarks.speed.clock import Clock


def main() -> None:
    clock, job = Clock(), json.loads(sys.argv[1])
    kind = job.pop("kind")
    if kind in ("ours", "eager", "separate", "uncompiled", "products"):
        from benchmarks.speed import contenders

        getattr(contenders, f"run_{kind}")(clock, **job)
    elif kind == "diffusion_policy":
        from benchmarks.speed import diffusion

        diffusion.run_authors(clock, **job)
    elif kind.startswith("online_"):
        from benchmarks.speed import online

        getattr(online, f"run_{kind.removeprefix('online_')}")(clock, **job)
    elif kind.startswith("expressive_"):
        from benchmarks.speed import expressive

        getattr(expressive, f"run_{kind.removeprefix('expressive_')}")(clock, **job)
    elif kind.startswith("models_"):
        from benchmarks.speed import models

        getattr(models, f"run_{kind.removeprefix('models_')}")(clock, **job)
    elif kind.startswith("rollouts_"):
        from benchmarks.speed import rollouts

        getattr(rollouts, f"run_{kind.removeprefix('rollouts_')}")(clock, **job)
    else:
        from benchmarks.speed import peers

        getattr(peers, kind)(clock, **job)


if __name__ == "__main__":
    main()
