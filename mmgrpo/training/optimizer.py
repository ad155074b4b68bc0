"""AdamW or SGD with its schedule, gradient clipping, and float32 master copies of half-precision weights.

Knows parameters by name; does not know losses, batches or models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mmgrpo.errors import CheckpointError, TrainingError, explain
from mmgrpo.parallel.strategy import Single, Strategy
from mmgrpo.training.schedule import Schedule

HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """Everything about the optimizer except its schedule. Field names and meanings are those of ``train:``."""

    optim: Literal["adamw", "sgd"] = "adamw"
    """Which optimizer."""
    weight_decay: float = 0.0
    """Decoupled weight decay; norms and biases have none."""
    adam_beta1: float = 0.9
    """AdamW: decay of the gradient's mean."""
    adam_beta2: float = 0.99
    """AdamW: decay of the squared gradient's mean."""
    adam_epsilon: float = 1e-8
    """AdamW: added to the denominator."""
    max_grad_norm: float = 1.0
    """Clip the gradient's global norm to this; 0: never."""


class Optimizer:
    """Steps the weights of a policy.

    Weights in bfloat16 or float16 have a float32 master copy: gradients are summed into it, it takes the step, and
    the weight is its rounding. Without it an update smaller than half a unit in the last place would be lost for good.

    A micro-batch is ``loss.backward()`` then :meth:`collect`; an optimizer step is :meth:`step`, or :meth:`skip` when
    there is no gradient.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        *,
        settings: OptimizerSettings,
        schedule: Schedule,
        dist: Strategy | None = None,
    ) -> None:
        """Build over named weights.

        Args:
            named: What learns.
            settings: Everything but the learning rate.
            schedule: The learning rate.
            dist: The ranks that hold the same weights, whose gradients are added up; default: this process alone.

        Raises:
            TrainingError: There is nothing to train.
        """
        if not named:
            raise TrainingError(explain("Nothing can be trained", fix="Unfreeze a part under model.freeze."))
        self.settings, self.schedule = settings, schedule
        self.dist = dist or Single()
        self.steps_taken = 0
        """Position in the schedule; skipped optimizer steps count."""
        self.updates_begun = 0
        """Optimizer steps begun or skipped by this object: nothing has changed while it stays the same."""
        self.has_stepped = False
        """Whether this object has changed weights."""
        self._named = list(named)
        self._masters = {name: p.detach().float() for name, p in named if p.dtype in HALF}
        self._stepped = [(name, self._masters.get(name, p)) for name, p in named]
        self._optimizer = _torch_optimizer(_by_decay(self._stepped, settings.weight_decay), settings)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next optimizer step."""
        return self.schedule.at(self.steps_taken)

    def collect(self) -> None:
        """Move the gradients of half-precision weights into float32 sums. Call after each backward pass."""
        for name, parameter in self._named:
            master = self._masters.get(name)
            if master is None or parameter.grad is None:
                continue
            if master.grad is None:
                master.grad = parameter.grad.float()
            else:
                master.grad.add_(parameter.grad)
            parameter.grad = None

    def gradients(self) -> list[tuple[str, Tensor]]:
        """Give name and gradient of every weight that has one, in the precision that is stepped."""
        return [(name, tensor.grad) for name, tensor in self._stepped if tensor.grad is not None]

    def grad_norm(self) -> Tensor:
        """Give the global norm of the gradients collected so far (a scalar tensor, not yet clipped)."""
        return torch.nn.utils.get_total_norm([g for _, g in self.gradients()])

    def step(self) -> float:
        """Add up and clip the gradients, change the weights, advance the schedule and clear the gradients.

        Returns:
            The global norm of the gradients before clipping.
        """
        self._all_reduce()
        norm = self.grad_norm()
        limit = self.settings.max_grad_norm
        if limit > 0:
            torch.nn.utils.clip_grads_with_norm_([tensor for _, tensor in self._stepped], limit, norm)
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate
        self.updates_begun += 1  # from here on an interruption leaves half a step
        self.has_stepped = True
        self._optimizer.step()
        self._round_masters()
        self._advance()
        return float(norm)

    def _all_reduce(self) -> None:
        """Sum the gradients of all ranks; a weight that has one in none of them is left alone everywhere."""
        if self.dist.world_size == 1:
            return
        tensors = [tensor for _, tensor in self._stepped]
        have = self.dist.all_gather([tensor.grad is not None for tensor in tensors])
        moved = [tensor for tensor, here in zip(tensors, zip(*have, strict=True), strict=True) if any(here)]
        for tensor in moved:
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
        self.dist.all_reduce_sum([tensor.grad for tensor in moved if tensor.grad is not None])

    def skip(self) -> None:
        """Advance the schedule without a step, and clear the gradients."""
        self.updates_begun += 1
        self._advance()

    def _advance(self) -> None:
        self.steps_taken += 1
        self.zero_grad()

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for (_, parameter), (_, stepped) in zip(self._named, self._stepped, strict=True):
            parameter.grad = stepped.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Give what a checkpoint must hold: moments, master copies, schedule position and the weights' names."""
        return {
            "optim": self.settings.optim,
            "names": [name for name, _ in self._named],
            "steps_taken": self.steps_taken,
            "masters": dict(self._masters),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken. Settings (decay, betas) stay those given to this object.

        Raises:
            CheckpointError: The state is of another optimizer or of other weights than those being trained now.
        """
        self._check(state)
        self.steps_taken = state["steps_taken"]
        settings = [{k: v for k, v in group.items() if k != "params"} for group in self._optimizer.param_groups]
        self._optimizer.load_state_dict(state["optimizer"])
        for group, own in zip(self._optimizer.param_groups, settings, strict=True):
            group.update(own)
        with torch.no_grad():
            for name, master in self._masters.items():
                master.copy_(state["masters"][name])
        self._round_masters()

    def _check(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that does not fit; torch would match it by position and say nothing."""
        names, masters = [name for name, _ in self._named], list(self._masters)
        expected = {"optimizer": self.settings.optim, "weights": len(names), "half-precision weights": len(masters)}
        got = {
            "optimizer": state["optim"],
            "weights": len(state["names"]),
            "half-precision weights": len(state["masters"]),
        }
        if expected == got and state["names"] == names and list(state["masters"]) == masters:
            return
        differ = sorted(set(names) ^ set(state["names"]))[:3]
        raise CheckpointError(
            explain(
                "The saved optimizer state does not fit what is trained now",
                where=f"weights {', '.join(differ)}" if differ else "",
                expected=str(expected),
                got=str(got),
                fix="Resume with the train.optim, model.tune, model.lora, model.freeze and model.dtype of that run.",
            )
        )

    @torch.no_grad()
    def _round_masters(self) -> None:
        for name, parameter in self._named:
            if name in self._masters:
                parameter.copy_(self._masters[name])


def _by_decay(named: Sequence[tuple[str, Tensor]], weight_decay: float) -> list[dict[str, Any]]:
    """Group weights by whether they decay: norms and biases (by shape or by name) do not."""
    plain = [t for name, t in named if t.ndim < 2 or name.endswith("bias") or "norm" in name.lower()]
    spared = {id(t) for t in plain}
    decayed = [t for _, t in named if id(t) not in spared]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _torch_optimizer(groups: list[dict[str, Any]], settings: OptimizerSettings) -> torch.optim.Optimizer:
    # The learning rate is set before every step; 0 here only satisfies the constructors.
    if settings.optim == "sgd":
        return torch.optim.SGD(groups, lr=0.0)
    betas = (settings.adam_beta1, settings.adam_beta2)
    # one pass over each weight on the CPU, where torch would take ten; elsewhere torch chooses well by itself
    fused = True if all(t.device.type == "cpu" for group in groups for t in group["params"]) else None
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=settings.adam_epsilon, fused=fused)
