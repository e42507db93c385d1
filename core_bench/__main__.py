"""`python -m core_bench`."""

import sys

from core_bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
