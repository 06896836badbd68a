import sys

from benchmarks.conformance.command import conformance
from benchmarks.conformance.our_side import parse_options
from benchmarks.figures import status

if __name__ == "__main__":
    sys.exit(status(lambda arguments: print(conformance(**parse_options(arguments))), sys.argv[1:]))
