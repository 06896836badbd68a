import sys

from benchmarks.conformance.command import conformance
from benchmarks.conformance.ours import parse

if __name__ == "__main__":
    print(conformance(**parse(sys.argv[1:])))
