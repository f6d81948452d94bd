"""The command as a module: python -m torchleap.cli."""

import sys

from . import main

sys.exit(main())
