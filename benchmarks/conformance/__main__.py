import sys

from benchmarks.conformance.command import conformance
from benchmarks.conformance.ours import parse
from benchmarks.figures import status

if __name__ == "__main__":
    sys.exit(status(lambda given: print(conformance(**parse(given))), sys.argv[1:]))
