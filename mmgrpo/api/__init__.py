"""The notebook face: train, load, evaluate, merge, and the run that training returns.

Everything here can be called from a script, a cell or a thread; the command line calls it, too.
"""

from __future__ import annotations

from mmgrpo.api.handle import Run
from mmgrpo.api.offline import evaluate, load, merge
from mmgrpo.api.training import train

__all__ = ["Run", "evaluate", "load", "merge", "train"]
