"""Logged data: read, check, write, find, describe."""

from offline_rl.data.dataset import Dataset
from offline_rl.data.load import load

__all__ = ["Dataset", "load"]
