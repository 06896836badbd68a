import sys

from benchmarks.conformance.command import conformance
from benchmarks.conformance.our_side import parse_options
from benchmarks.figures import run_command

if __name__ == "__main__":
    sys.exit(
        run_command(lambda arguments: print(conformance(**parse_options(arguments))), sys.argv[1:])
    )
