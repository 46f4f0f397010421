"""`python -m experiments.benchmarks NAME` is `python -m experiments benchmarks NAME`."""

import sys

from experiments.__main__ import main
from experiments.toolkit import shell

if __name__ == "__main__":
    shell.start(lambda: main(["benchmarks", *sys.argv[1:]]))
