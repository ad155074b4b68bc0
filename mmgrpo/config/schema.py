"""The whole configuration: one frozen tree, eleven sections, no torch.

Every key is used or refused; combinations that cannot work are refused here, before anything heavy is loaded.
"""

from __future__ import annotations

from pydantic import model_validator

from mmgrpo.config.base import Section
from mmgrpo.config.cache import Cache
from mmgrpo.config.checks import Checks
from mmgrpo.config.data import Data
from mmgrpo.config.eval import Eval
from mmgrpo.config.loss import Loss
from mmgrpo.config.model import Model
from mmgrpo.config.observe import Observe
from mmgrpo.config.rewards import Reward
from mmgrpo.config.rollout import Rollout
from mmgrpo.config.train import Train
from mmgrpo.config.warm_start import WarmStart


class Config(Section):
    """One run."""

    model: Model
    """The policy."""
    data: Data = Data()
    """The rows."""
    rollout: Rollout = Rollout()
    """Writing completions."""
    rewards: tuple[Reward, ...] = ()
    """Reward functions; may be left out when they are given in Python."""
    loss: Loss = Loss()
    """The objective."""
    train: Train = Train()
    """Steps, optimizer, checkpoints."""
    eval: Eval | None = None
    """Held-out evaluation. Left out: with its defaults where ``data.eval`` names rows, else none; null: none."""
    warm_start: WarmStart | None = None
    """Supervised steps before GRPO; left out: none."""
    cache: Cache = Cache()
    """Processed prompts kept between uses."""
    checks: Checks = Checks()
    """The run checks itself."""
    observe: Observe = Observe()
    """What a run shows and writes."""

    @model_validator(mode="after")
    def _held_out_rows_are_used(self) -> Config:
        if self.data.eval is not None and "eval" not in self.model_fields_set:
            # a copy would be dropped where the section is built in Python; nobody has seen this one yet
            object.__setattr__(self, "eval", Eval())
        return self
