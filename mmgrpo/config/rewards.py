"""``rewards:`` the reward functions and how their values are put together."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from mmgrpo.config.base import Float, Int, Plugin, Section


class Reward(Section):
    """One reward function. Keys of its own (constructor arguments) go under ``args``."""

    fn: Plugin
    """``path.py:name``, ``module:name``, or the name of an installed entry point."""
    weight: Float = 1.0
    """Weight in the total; only with role: add."""
    name: str | None = None
    """Name in logs; default: the function's."""
    args: dict[str, Any] = {}
    """Keyword arguments: of a class's constructor, or of every call of a function."""
    style: Literal["auto", "native", "trl", "swift", "easyr1"] = "auto"
    """Whose conventions it follows; auto knows ms-swift classes and EasyR1 functions, all others are native."""
    role: Literal["add", "gate", "metric"] = "add"
    """add: weighted into the total; gate: multiplies the total; metric: logged only."""
    scale: Literal["none", "running", "group"] = "none"
    """Before weighting: as it is, by mean and deviation over the run, or by those of each group (GDPO)."""
    workers: Int = Field(default=0, ge=0)
    """Worker processes that score group by group; 0: in this process."""
    timeout_seconds: Float | None = Field(default=None, gt=0)
    """Longest time for one call; a function that is not async then runs in a worker process. None: no limit."""
    on_error: Literal["stop", "skip_group"] = "stop"
    """When it raises, takes too long or breaks its contract: stop, or leave the group out of the step (counted)."""
    cache: bool = True
    """Keep the values of a reward that declares itself pure."""

    @model_validator(mode="after")
    def _role(self) -> Reward:
        if self.role != "add":
            unused = [key for key in ("weight", "scale") if key in self.model_fields_set]
            if unused:
                raise ValueError(f"{', '.join(unused)} has no meaning with role: {self.role}; leave it out")
        return self
