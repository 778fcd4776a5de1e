"""`python -m installation VENV REQUIREMENTS`: set up the environment for `make`."""

import argparse
import sys
from pathlib import Path

from installation import environment


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m installation", description=__doc__)
    parser.add_argument("venv", type=Path, help="folder of the virtual environment")
    parser.add_argument("requirements", type=Path, help="requirements file to install")
    arguments = parser.parse_args()
    try:
        environment.prepare(arguments.venv, arguments.requirements, sys.stderr.write)
    except environment.SetupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
