"""`python -m penalties`, where the script is not on the path."""

import sys

from .app.cli import main

if __name__ == "__main__":
    sys.exit(main())
