"""`offline-rl doctor`: what this machine has, and what is missing for what."""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import NamedTuple

from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Checked, build
from offline_rl.utils.text import table
from offline_rl.version import __version__

PACKAGE = "offline-rl-suite"  # name on which `pip` knows this package
MODULES = {"hydra-core": "hydra", "pyyaml": "yaml"}  # modules named unlike their package
PURPOSES = {  # extra -> what needs it
    "box2d": "RocketRecovery of NeoRL-2",
    "export": "ONNX export",
    "lerobot": "LeRobot's tables and videos",
    "ogbench": "OGBench",
    "pusht": "Push-T",
    "ray": "benchmark launcher=ray",
    "robotics": "Adroit, Franka kitchen, Fetch",
    "sindy": "dynamics=sindy",
    "video": "MP4 files",
    "zarr": "Zarr stores",
}
