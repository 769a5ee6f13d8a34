"""``python -m npc``."""

import sys

from npc.cli import main

sys.exit(main())
