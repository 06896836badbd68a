"""Updates per second of ours and of others, in turns in one run on one machine: see `bench`."""

import sys

from benchmarks.speed.bench import bench
from offline_rl.config import parse

if __name__ == "__main__":
    print(bench(**parse(sys.argv[1:])))
