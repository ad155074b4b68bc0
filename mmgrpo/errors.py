"""The errors of mmgrpo: one tree, so that a caller can catch as much or as little as needed.

    MmgrpoError
    ├── ConfigError (ValueError)        a YAML or a key is wrong; nothing was loaded yet
    ├── DataError (ValueError)
    │   ├── DatasetError                rows, columns, files
    │   └── MediaError                  a picture, a sound, a video
    ├── ProcessorError (ValueError)     prompt, template, placeholders
    │   └── PromptTooLong               more tokens than the limit
    ├── RewardError (RuntimeError)      a reward function broke its contract
    ├── RolloutError (RuntimeError)
    │   ├── EngineUnavailable           the engine cannot run here
    │   └── WeightSyncError             the engine's weights are not the trainer's
    ├── TrainingError (RuntimeError)    non-finite numbers, a failed run check
    └── CheckpointError (RuntimeError)  saving, finding or reading a checkpoint

Each also is the standard type in brackets. A message says what, where, expected, got, and what to do: build it
with :func:`explain`, so that all read alike. This module knows nothing of torch or of the rest of the package.
"""

from __future__ import annotations


class MmgrpoError(Exception):
    """The root of all errors that mmgrpo raises on purpose."""


class ConfigError(MmgrpoError, ValueError):
    """A configuration is wrong: unknown key, wrong type, impossible combination, file not found."""


class DataError(MmgrpoError, ValueError):
    """Something about the data: see the two kinds below."""


class DatasetError(DataError):
    """Rows, columns or data files are missing or malformed."""


class MediaError(DataError):
    """A picture, a sound or a video cannot be read."""


class ProcessorError(MmgrpoError, ValueError):
    """A prompt cannot be made: no chat template, too long, or placeholders do not match the media."""


class PromptTooLong(ProcessorError):
    """A prompt has more tokens than ``data.max_prompt_tokens``."""


class RewardError(MmgrpoError, RuntimeError):
    """A reward function raised, or returned something that is not one number or None per completion."""


class RolloutError(MmgrpoError, RuntimeError):
    """Generation failed."""


class EngineUnavailable(RolloutError):
    """The engine asked for cannot run on this machine."""


class WeightSyncError(RolloutError):
    """The engine does not hold the trainer's weights."""


class TrainingError(MmgrpoError, RuntimeError):
    """Training must stop: a number is not finite, or a run check found silent corruption."""


class CheckpointError(MmgrpoError, RuntimeError):
    """A checkpoint cannot be written, found or read."""


_LONGEST = 4000
"""Characters of a fact at the most: what a user gave may be of any length, and is quoted."""


def explain(what: str, *, where: str = "", expected: str = "", got: str = "", fix: str = "") -> str:
    """Build an error message in the one form that all errors of mmgrpo have.

    Args:
        what: What is wrong, as a sentence without its full stop.
        where: File, line, key, row or sample id.
        expected: What would have been right.
        got: What was there instead.
        fix: What the user can do now.

    Returns:
        The message, one fact per line; empty facts are left out.

    Example:
        >>> print(explain("Unknown key", where="my.yaml:3", got="learnig_rate", fix="Write learning_rate."))
        Unknown key.
          where: my.yaml:3
          got: learnig_rate
          fix: Write learning_rate.
    """
    facts = {"where": where, "expected": expected, "got": got, "fix": fix}
    lines = [f"  {name}: {shortened(text, _LONGEST)}" for name, text in facts.items() if text]
    return "\n".join([f"{shortened(what, _LONGEST).rstrip('.')}.", *lines])


def shortened(text: str, limit: int = 120) -> str:
    """Cut a text of any length for a message, with its length.

    Args:
        text: What was given.
        limit: Longest text that is kept whole, in characters.

    Returns:
        The text, or its beginning and how long it is.

    Example:
        >>> shortened("short"), shortened("x" * 5000, 10)
        ('short', 'xxxxxxxxxx… (5,000 characters)')
    """
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


def short_repr(value: object, limit: int = 120) -> str:
    r"""Write any value for a message: as Python does, cut, and never raising.

    Example:
        >>> short_repr("a\0b"), short_repr(10**5000)
        ("'a\\x00b'", 'a value of type int that has no text')
    """
    try:
        return shortened(repr(value), limit)
    except Exception:  # a user's own __repr__, or an integer of more digits than Python prints
        return f"a value of type {type(value).__name__} that has no text"


def counted(number: int | float, noun: str, *, plural: str = "") -> str:
    """Write a number with its noun, for a message.

    Args:
        number: How many.
        noun: Of one.
        plural: Of several, where it is not the noun with an s.

    Returns:
        The number with separators, and the noun that fits it.

    Example:
        >>> counted(1, "step"), counted(1200, "row"), counted(0.5, "second"), counted(2, "box", plural="boxes")
        ('1 step', '1,200 rows', '0.5 seconds', '2 boxes')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def shorten(text: str, *, limit: int = 200) -> str:
    """Cut a text for a message, and say how long it was: a row may hold megabytes.

    Args:
        text: Any text.
        limit: Characters that are kept.

    Example:
        >>> shorten("abc"), shorten("abcdef", limit=3)
        ('abc', 'abc… (6 characters)')
    """
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"
