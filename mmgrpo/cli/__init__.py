"""The command line: ``mmgrpo train my.yaml key=value …``.

Each command hands over to ``mmgrpo.api``, which does the work, and imports it only when it runs, so that ``--help``
is instant. A user's mistake is one message and exit code 2, never a traceback.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import sys
import time
import warnings
from collections.abc import Sequence

from mmgrpo import __version__
from mmgrpo.cli.commands import COMMANDS, Stopped
from mmgrpo.errors import MmgrpoError, explain
from mmgrpo.observe.text import Stderr

OK, NOT_IMPROVED, MISTAKE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Words of the command line; default: those of this process.

    Returns:
        The exit code: 0, 1 (``--require-improvement`` was not met), 2 (a mistake), 130 (Ctrl-C), 143 (SIGTERM).
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    _reserve_streams()
    with contextlib.redirect_stderr(Stderr(sys.stderr)) if sys.stderr is not None else contextlib.nullcontext():
        return _main(words)


def _reserve_streams() -> None:
    """Open the null device where a standard stream is closed: else the next file would take its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview(), file=sys.stderr if not words else sys.stdout)
        return OK if words else MISTAKE
    if words[0] in ("-V", "--version"):
        print(f"mmgrpo {__version__}")
        return OK
    if words[0] not in COMMANDS:
        close = difflib.get_close_matches(words[0], COMMANDS, n=1)
        fix = f"Did you mean mmgrpo {close[0]}?" if close else "See mmgrpo --help."
        told = explain("Unknown command", expected=", ".join(COMMANDS), got=words[0], fix=fix)
        return _complain(told)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _run(words[0], words[1:])


def _run(name: str, words: Sequence[str]) -> int:
    """Run a command, and turn what a user can mend into a message."""
    command = COMMANDS[name]
    try:
        return command.run(command.parser(name).parse_intermixed_args(words))
    except SystemExit as stop:  # argparse has printed its message, or the help
        return int(stop.code or OK)
    except MmgrpoError as error:
        return _complain(str(error))
    except Stopped as stop:
        print(f"\n{stop}", file=sys.stderr)
        return INTERRUPTED
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if error.filename is None and not full:
            raise
        what = "The disk is full" if full else f"{error.strerror}"
        fix = "Free space there, or write to another disk." if full else "Check the path and its rights."
        return _complain(explain(what, where=str(error.filename or ""), fix=fix))


_FIRST_RANK_SECONDS = 20.0
"""Under torchrun all ranks make the same mistake; it ends the others once the first has spoken and is gone."""


def _complain(message: str) -> int:
    rank = os.environ.get("RANK", "0")
    if rank not in ("", "0"):
        if "TORCHELASTIC_RUN_ID" in os.environ:
            time.sleep(_FIRST_RANK_SECONDS)
        message = f"rank {rank}: {message}"  # who is still here made the mistake alone
    print(f"mmgrpo: {message}", file=sys.stderr)
    return MISTAKE


def _show_warning(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _overview() -> str:
    lines = [f"  {name:8} {command.about}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: mmgrpo COMMAND ...        (mmgrpo COMMAND --help tells more, mmgrpo --version the version)",
            "",
            "GRPO for vision-language, audio and video models.",
            "",
            *lines,
        ]
    )
