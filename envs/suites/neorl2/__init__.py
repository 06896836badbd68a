"""Vectorized simulators of NeoRL-2 (arXiv:2503.19267), one file each.

Fusion and Salespromotion have no simulator here, only data: their dynamics are the authors' trained
networks (`polixir/NeoRL2:neorl2/envs/data`).
"""

from envs.suites.neorl2.dmsd import DMSD
from envs.suites.neorl2.pipeline import Pipeline
from envs.suites.neorl2.random_friction_hopper import RandomFrictionHopper
from envs.suites.neorl2.rocket_recovery import RocketRecovery
from envs.suites.neorl2.safety_half_cheetah import SafetyHalfCheetah
from envs.suites.neorl2.simglucose import Simglucose

__all__ = [
    "DMSD",
    "Pipeline",
    "RandomFrictionHopper",
    "RocketRecovery",
    "SafetyHalfCheetah",
    "Simglucose",
]
