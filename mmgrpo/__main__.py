"""``python -m mmgrpo`` is ``mmgrpo``."""

from __future__ import annotations

import sys

from mmgrpo.cli import main

if __name__ == "__main__":
    sys.exit(main())
