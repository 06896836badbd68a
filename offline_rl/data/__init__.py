"""Data sets: reading, checking, writing, downloading and describing them."""

from offline_rl.data.dataset import Dataset
from offline_rl.data.load import load

__all__ = ["Dataset", "load"]
