"""``python -m s4async``: the command line."""

import sys

from s4async.cli import main

sys.exit(main())
