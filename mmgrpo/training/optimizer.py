"""AdamW or SGD with its schedule, loss scaling, clipping, and float32 master copies of half-precision weights.

Knows parameters by name; does not know losses, batches or models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from mmgrpo.config.train import Train
from mmgrpo.errors import CheckpointError, TrainingError, explain
from mmgrpo.parallel.strategy import Single, Strategy

Value = TypeVar("Value")

HALF = (torch.bfloat16, torch.float16)

_FIRST_LOSS_SCALE = 2.0**16
_LARGEST_LOSS_SCALE = 2.0**32
_STEPS_BEFORE_GROWTH = 200
"""Optimizer steps without overflow after which the loss scale is doubled."""


ScheduleKind = Literal["constant", "linear", "cosine"]


def learning_rate_at(step: int, *, peak: float, warmup_steps: int, total_steps: int, kind: ScheduleKind) -> float:
    """Give the learning rate of one optimizer step.

    With s the step, W the warm-up and L the total, s < W:  peak (s + 1) / (W + 1).  Later, with
    x = (s - W) / (L - W):  constant peak; linear peak (1 - x); cosine peak (1 + cos(pi x)) / 2.

    The rise starts just above zero and the fall would reach zero at step L, one after the last: no optimizer step is
    spent on a rate of zero.

    Args:
        step: 0 for the first optimizer step.
        peak: Largest learning rate, reached at step W.
        warmup_steps: W, optimizer steps of linear rise.
        total_steps: L, optimizer steps of the whole run.
        kind: Shape after the warm-up.

    Returns:
        The learning rate; 0 past the end of a falling schedule.

    Example:
        >>> [learning_rate_at(s, peak=1.0, warmup_steps=1, total_steps=5, kind="linear") for s in range(6)]
        [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if kind == "constant":
        return peak
    progress = min((step - warmup_steps) / max(total_steps - warmup_steps, 1), 1.0)
    return peak * (1.0 - progress) if kind == "linear" else peak * (1.0 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A learning rate for each optimizer step; see :func:`learning_rate_at`."""

    peak: float
    """Largest learning rate."""
    warmup_steps: int = 0
    """Optimizer steps of linear rise."""
    total_steps: int = 0
    """Optimizer steps of the whole run; unused by "constant"."""
    kind: ScheduleKind = "constant"
    """Shape after the warm-up."""

    def at(self, step: int) -> float:
        """Give the learning rate of an optimizer step, counted from 0."""
        return learning_rate_at(
            step, peak=self.peak, warmup_steps=self.warmup_steps, total_steps=self.total_steps, kind=self.kind
        )


class Optimizer:
    """Steps the weights of a policy.

    Weights in bfloat16 or float16 have a float32 master copy: gradients are summed into it, it takes the step, and
    the weight is its rounding. Without it an update smaller than half a unit in the last place would be lost for good.

    Where a model computes in float16, a loss divided by the tokens of a whole optimizer step has gradients below
    float16's smallest number: they would become zero without a word. The loss is multiplied by a power of two before
    backward, and gradients are divided by it in float32. The scale is halved, and the optimizer step computed again,
    where a gradient overflows; it is doubled after some steps without.

    An optimizer step is :meth:`run_step` around a :meth:`backward` per micro-batch, or :meth:`skip` when there is no
    gradient.

    Source: Micikevicius et al., "Mixed Precision Training", arXiv:1710.03740, sections 3.1 (masters) and 3.2 (scale).
    """

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        *,
        settings: Train,
        schedule: Schedule,
        weight_decay: float | None = None,
        compute_dtype: torch.dtype | None = None,
        dist: Strategy | None = None,
    ) -> None:
        """Build over named weights.

        Args:
            named: What learns.
            settings: The ``train:`` section; everything but the learning rate is read.
            schedule: The learning rate.
            weight_decay: In place of the section's.
            compute_dtype: Of the model's activations; float16 needs loss scaling, also for weights in float32.
            dist: The ranks that hold the same weights, whose gradients are added up; default: this process alone.

        Raises:
            TrainingError: There is nothing to train.
        """
        if not named:
            raise TrainingError(explain("Nothing can be trained", fix="Unfreeze a part under model.freeze."))
        self.settings, self.schedule = settings, schedule
        decay = settings.weight_decay if weight_decay is None else weight_decay
        self.dist = dist or Single()
        self.steps_taken = 0
        """Position in the schedule; skipped optimizer steps count."""
        self.updates_begun = 0
        """Optimizer steps begun or skipped by this object: nothing has changed while it stays the same."""
        self.has_stepped = False
        """Whether this object has changed weights."""
        self.loss_scale = _FIRST_LOSS_SCALE if _is_scaled(named, compute_dtype) else 1.0
        """What a loss is multiplied by before backward; 1: there is no scaling."""
        self._scales = self.loss_scale != 1.0
        self._steps_without_overflow = 0
        self._named = list(named)
        self._masters = {name: p.detach().float() for name, p in named if p.dtype in HALF}
        self._stepped = [(name, self._masters.get(name, p)) for name, p in named]
        self._optimizer = _torch_optimizer(_by_decay(self._stepped, decay), settings)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next optimizer step."""
        return self.schedule.at(self.steps_taken)

    def run_step(self, compute: Callable[[], Value]) -> tuple[Value, float]:
        """Take an optimizer step. All ranks.

        Args:
            compute: Calls :meth:`backward` for each micro-batch of this rank. It is called again where a gradient
                overflowed float16, with a smaller scale; weights are the same then.

        Returns:
            What ``compute`` gave, and the global norm of the gradients before clipping.

        Raises:
            TrainingError: A loss or gradient is not finite. Weights are as they were.
        """
        try:
            while True:
                self.zero_grad()
                computed: Value | None = None
                try:
                    computed, overflowed = compute(), False
                except _Overflow:
                    overflowed = True
                if not (self._scales and self.dist.any_rank(overflowed)):
                    return computed, self.step()  # type: ignore[return-value]
                self.loss_scale /= 2
                self._steps_without_overflow = 0
        finally:
            # Whatever interrupts a step, no half-summed gradient may reach the next.
            self.zero_grad()

    def backward(self, loss: Tensor, *, where: str, check_finite: bool = True) -> None:
        """Add a micro-batch's gradient to those of its optimizer step.

        Args:
            loss: The micro-batch's contribution to the step's loss.
            where: The samples it comes from, for an error.
            check_finite: Stop on a loss or gradient that is infinite or NaN.

        Raises:
            TrainingError: Loss or gradient is not finite. Weights are as they were.
        """
        if check_finite and not bool(torch.isfinite(loss)):
            _stop("loss", float(loss.detach()), where)
        (loss * self.loss_scale if self._scales else loss).backward()
        self.collect()
        if not (check_finite or self._scales):
            return
        norm = self.grad_norm()
        # Gradients were finite before this micro-batch, or the one before would have stopped.
        if not bool(torch.isfinite(norm)):
            if self._scales and self.loss_scale > 1:
                raise _Overflow
            if check_finite:
                _stop("gradient norm", float(norm), where)

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
        """Give name and gradient of every weight that has one, in the precision that is stepped, times the scale."""
        return [(name, tensor.grad) for name, tensor in self._stepped if tensor.grad is not None]

    def grad_norm(self) -> Tensor:
        """Give the global norm of the gradients collected so far (a scalar tensor, not yet clipped)."""
        norm = torch.nn.utils.get_total_norm([g for _, g in self.gradients()])
        return norm / self.loss_scale if self._scales else norm

    def step(self) -> float:
        """Add up and clip the gradients, change the weights, advance the schedule and clear the gradients.

        Returns:
            The global norm of the gradients before clipping.
        """
        self._all_reduce()
        norm = self.grad_norm()
        self._unscale()
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

    def _unscale(self) -> None:
        """Divide the gradients by the scale, in the precision that is stepped, and let it grow."""
        if not self._scales:
            return
        for _, gradient in self.gradients():
            gradient.div_(self.loss_scale)
        self._steps_without_overflow += 1
        if self._steps_without_overflow >= _STEPS_BEFORE_GROWTH:
            self.loss_scale = min(self.loss_scale * 2, _LARGEST_LOSS_SCALE)
            self._steps_without_overflow = 0

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
            "loss_scale": [self.loss_scale, self._steps_without_overflow],
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
        if self._scales and "loss_scale" in state:  # checkpoints of earlier versions have none
            self.loss_scale, self._steps_without_overflow = state["loss_scale"]
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


class _Overflow(Exception):
    """A gradient left the range of float16: the optimizer step is computed again with a smaller scale."""


def _is_scaled(named: Sequence[tuple[str, nn.Parameter]], compute_dtype: torch.dtype | None) -> bool:
    return torch.float16 in {compute_dtype, *(parameter.dtype for _, parameter in named)}


def _stop(name: str, value: float, where: str) -> NoReturn:
    raise TrainingError(
        explain(
            f"The {name} is not finite; training stops before the weights are changed",
            where=where,
            expected="a finite number",
            got=f"{name} {value}",
            fix="Look at these samples, their media and rewards. If they are sound, lower train.learning_rate or "
            "set model.dtype: float32. The last checkpoint is not affected.",
        )
    )


def _by_decay(named: Sequence[tuple[str, Tensor]], weight_decay: float) -> list[dict[str, Any]]:
    """Group weights by whether they decay: norms and biases (by shape or by name) do not."""
    plain = [t for name, t in named if t.ndim < 2 or name.endswith("bias") or "norm" in name.lower()]
    spared = {id(t) for t in plain}
    decayed = [t for _, t in named if id(t) not in spared]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _torch_optimizer(groups: list[dict[str, Any]], settings: Train) -> torch.optim.Optimizer:
    # The learning rate is set before every step; 0 here only satisfies the constructors.
    if settings.optim == "sgd":
        return torch.optim.SGD(groups, lr=0.0)
    betas = (settings.adam_beta1, settings.adam_beta2)
    # one pass over each weight on the CPU, where torch would take ten; elsewhere torch chooses well by itself
    fused = True if all(t.device.type == "cpu" for group in groups for t in group["params"]) else None
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=settings.adam_epsilon, fused=fused)
