"""`python -m experiments.simtest` is `python -m experiments simtest`."""

import sys

from experiments.__main__ import main
from experiments.toolkit import shell

if __name__ == "__main__":
    shell.start(lambda: main(["simtest", *sys.argv[1:]]))
