"""The main function of a worker process: load one reward, then score groups until the pipe closes.

Started by :mod:`mmgrpo.reward.pool`. What the reward prints goes to standard error, since standard output is the pipe.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import IO, Any

from mmgrpo.errors import MmgrpoError
from mmgrpo.reward.calling import call
from mmgrpo.reward.loading import Loaded, load_reward
from mmgrpo.reward.pool import read_frame, write_frame


def main() -> None:
    """Serve one parent process."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    try:
        reward = load_reward(**read_frame(source))
    except MmgrpoError as error:
        write_frame(sink, error)
        return
    write_frame(sink, "ready")
    serve(reward, source, sink)


def serve(reward: Loaded, source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer each group with its values or its error, until the parent closes the pipe."""
    while True:
        try:
            columns, step = read_frame(source)
        except EOFError:
            return
        answer: Any
        try:
            answer = call(reward, columns, step=step)
        except MmgrpoError as error:
            answer = error
        write_frame(sink, answer)


def _die_with(parent: int) -> None:
    """End this process when its parent is gone, even in the middle of a call."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
