"""Where a reward's own code went wrong: the line in the user's file, and what the error is a sign of.

Reads tracebacks; calls nothing.
"""

from __future__ import annotations

import functools
import inspect
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import Any

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {_PACKAGE})
_OF_FORM = (TypeError, AttributeError, KeyError, IndexError)
"""What Python raises when a completion is text and a list of messages was expected, or the other way round."""


def place_of(error: BaseException, function: Any) -> str:
    """Name the line of the user's file in which a reward failed, not the depths of a library that it called.

    Args:
        error: What was raised, with its traceback.
        function: The reward: a function, a class or an object with ``__call__``.

    Returns:
        ``file:line (its code)``, and where the error was raised, if that is elsewhere.
    """
    frames = traceback.extract_tb(error.__traceback__)
    chosen = _own(frames, function)
    if chosen is None:  # it was not entered: its arguments do not fit
        return _defined(function)
    deepest = frames[-1]
    further = "" if deepest is chosen else f", raised in {deepest.filename}:{deepest.lineno}"
    return f"{chosen.filename}:{chosen.lineno}{f' ({chosen.line})' if chosen.line else ''}{further}"


def advice_for(error: BaseException, function: Any, style: str) -> str:
    """Say what to do about an error of a reward.

    Args:
        error: What was raised.
        function: The reward.
        style: Whose conventions it was called by.

    Returns:
        The notes of the error, where its author added any; else a sentence that names the other style where the form
        of the completions seems to be the fault.
    """
    notes = getattr(error, "__notes__", ())
    if notes:
        return " ".join(notes)
    chosen = _own(traceback.extract_tb(error.__traceback__), function)
    text, code = str(error), (chosen.line or "") if chosen else ""
    if isinstance(error, _OF_FORM):
        chat = "string ind" in text or "'str' object has no attribute" in text
        if style != "trl" and (chat or '["content"]' in code or "['content']" in code):
            return "Completions are text here. If the function was written for TRL, set style: trl under this reward."
        if style == "trl" and ("'list' object has no attribute" in text or "got 'list'" in text):
            return "Under style: trl a completion is a list of messages. For a function of texts leave style out."
    return "Correct the function; it can be tried without a model: mmgrpo rewards try --completions FILE."


def _own(frames: Sequence[traceback.FrameSummary], function: Any) -> traceback.FrameSummary | None:
    """The last frame inside the reward's file; else the last one that is no library's; None where there is none."""
    code = _code_of(function)
    file = None if code is None else code.co_filename
    own = [frame for frame in frames if frame.filename == file]
    users = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    return next((some[-1] for some in (own, users) if some), None)


def _defined(function: Any) -> str:
    code = _code_of(function)
    return "unknown line" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _code_of(function: Any) -> CodeType | None:
    inner: Any = function.func if isinstance(function, functools.partial) else function
    inner = inspect.unwrap(inner)
    for made in (inner, getattr(inner, "__init__", None) if inspect.isclass(inner) else None, type(inner).__call__):
        code = getattr(made, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
