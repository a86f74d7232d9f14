"""``python -m rebuilder`` is the command ``rebuilder``."""

import sys

from rebuilder.cli import main

sys.exit(main())
