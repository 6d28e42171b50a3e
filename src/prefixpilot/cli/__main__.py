"""``python -m prefixpilot.cli``."""

import sys

from prefixpilot.cli import main

if __name__ == "__main__":
    sys.exit(main())
