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
    """Held-out evaluation; left out: none."""
    warm_start: WarmStart | None = None
    """Supervised steps before GRPO; left out: none."""
    cache: Cache = Cache()
    """Processed prompts kept between uses."""
    checks: Checks = Checks()
    """The run checks itself."""
    observe: Observe = Observe()
    """What a run shows and writes."""

    @model_validator(mode="after")
    def _combinations(self) -> Config:
        train, loss = self.train, self.loss
        if train.prompts_per_step % train.optimizer_steps:
            raise ValueError(
                f"train.optimizer_steps {train.optimizer_steps} does not divide train.prompts_per_step "
                f"{train.prompts_per_step}; each optimizer step needs the same number of whole groups"
            )
        if train.num_steps is not None and train.num_epochs is not None:
            raise ValueError("give train.num_steps or train.num_epochs, not both")
        if loss.delta is not None and loss.delta <= 1 + (loss.epsilon_high or loss.epsilon):
            raise ValueError("loss.delta must be larger than 1 + loss.epsilon_high, or it would undo the clipping")
        if loss.delta is not None and loss.importance_sampling_level == "sequence":
            raise ValueError("loss.delta bounds token ratios; with importance_sampling_level: sequence leave it out")
        return self
