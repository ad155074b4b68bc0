"""What a reward says about itself: its range, whether it is pure, which extra it needs.

Optional: any function is a reward without it. Knows nothing of how rewards are loaded or called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFacts:
    """Facts that a reward declares with :func:`reward_facts`."""

    low: float | None = None
    """Smallest value it returns; None: unknown."""
    high: float | None = None
    """Largest value it returns; None: unknown."""
    pure: bool = False
    """The value of a completion depends on nothing but its own arguments, so it may be cached."""
    extra: str = ""
    """The optional extra of mmgrpo that must be installed, for example ``clip``."""
    timeout_seconds: float | None = None
    """It may hang, so it runs in a worker process with this limit unless the YAML says otherwise."""

    @property
    def range(self) -> str:
        """The range in words.

        Example:
            >>> RewardFacts(low=0.0, high=1.0).range
            '0 to 1'
        """
        if self.low is None and self.high is None:
            return "any number"
        if self.high is None:
            return f"at least {self.low:g}"
        return f"at most {self.high:g}" if self.low is None else f"{self.low:g} to {self.high:g}"


def reward_facts(
    *,
    low: float | None = None,
    high: float | None = None,
    pure: bool = False,
    extra: str = "",
    timeout_seconds: float | None = None,
) -> Callable[[T], T]:
    """Declare facts about a reward function or class; ``mmgrpo rewards list`` shows them.

    Args:
        low: Smallest value it returns.
        high: Largest value it returns.
        pure: True lets its values be cached: each must depend only on the completion and its own columns.
        extra: The optional extra of mmgrpo that it needs.
        timeout_seconds: It may hang: run it in a worker process with this limit for each group.

    Returns:
        A decorator that leaves the function or class as it is.

    Example:
        >>> @reward_facts(low=0.0, high=1.0)
        ... def short(completions: list[str]) -> list[float]:
        ...     return [float(len(text) < 20) for text in completions]
        >>> facts_of(short).range
        '0 to 1'
    """
    facts = RewardFacts(low=low, high=high, pure=pure, extra=extra, timeout_seconds=timeout_seconds)

    def mark(reward: T) -> T:
        setattr(reward, "__reward_facts__", facts)  # noqa: B010  (the attribute is ours, not the type's)
        return reward

    return mark


def facts_of(reward: object) -> RewardFacts:
    """Read what a reward declared; all defaults when it declared nothing."""
    facts = getattr(reward, "__reward_facts__", None)
    return facts if isinstance(facts, RewardFacts) else RewardFacts()
