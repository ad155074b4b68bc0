"""The user's ``on_step`` callback: what it may ask for by name, and what its answer means."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mmgrpo.errors import ConfigError, explain
from mmgrpo.parallel.strategy import Strategy
from mmgrpo.plugins import requested_names

OnStep = Callable[..., Any]
"""Called with the number of steps done and the step's metrics, and by name with those of :data:`OFFERED` that its
signature asks for; returning False stops the run."""
OFFERED = ("policy", "groups", "stats")
"""The policy, the step's scored groups, and the statistics of its update."""
_EXPECTED = f"a function of the steps done and the step's metrics, and by name any of {', '.join(OFFERED)}"


class StepCallback:
    """Calls ``on_step`` after each step.

    Args:
        function: The user's; None: there is none.
        dist: Where it says stop in one process, all stop.

    Raises:
        ConfigError: It cannot be called so; told now, not after the first step.
    """

    def __init__(self, function: OnStep | None, dist: Strategy) -> None:
        self._function, self._dist = function, dist
        self._names = () if function is None else callback_names(function)

    def __call__(self, step: int, metrics: Mapping[str, float], **offered: Any) -> bool:
        """Call the function, and tell whether the run stops.

        Args:
            step: Steps done.
            metrics: Of the step.
            **offered: What can be asked for by name.
        """
        stops = False
        if self._function is not None:
            stops = self._function(step, metrics, **{name: offered[name] for name in self._names}) is False
        return self._dist.any_rank(stops)


def callback_names(function: object) -> tuple[str, ...]:
    """Read from a callback's signature which of :data:`OFFERED` it asks for.

    Args:
        function: The callback.

    Raises:
        ConfigError: It is no function, or cannot be called with what there is.

    Example:
        >>> callback_names(lambda step, metrics, groups: None)
        ('groups',)
    """
    if not callable(function):
        raise ConfigError(explain("on_step is no function", expected=_EXPECTED, got=f"{function!r:.80}"))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some callables made in C nothing can be read
        return ()
    names = requested_names(signature, OFFERED, after=2)
    try:
        signature.bind(0, {}, **dict.fromkeys(names))
    except TypeError as error:
        got = f"arguments {signature}"
        raise ConfigError(explain("on_step cannot be called", expected=_EXPECTED, got=got)) from error
    return names
