"""However a rollout is cut into micro-batches, the gradient is the same: on the fake policy."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.config.loss import Loss
from mmgrpo.config.train import Train
from mmgrpo.training.optimizer import Optimizer, Schedule
from mmgrpo.training.packing import pack
from mmgrpo.training.update import UpdateSettings, update

LOSS_TYPES = ["grpo", "dr_grpo", "dapo", "bnpo"]
BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-5}
CUTS = {13: 8, 34: 2, 1000: 1}
"""Micro-batches by budget: 8x1, 2x4 and 1x8 completions."""


class Recording(Optimizer):
    """Keeps the gradients of each optimizer step."""

    seen: list

    def step(self):
        self.seen = [*getattr(self, "seen", []), torch.cat([g.reshape(-1).clone() for _, g in self.gradients()])]
        return super().step()


@pytest.fixture
def gradients(make_policy, scored, centred):
    def take(budget, dtype, *, num_iterations=1, mask_truncated=False, **objective):
        policy = make_policy(dtype)
        groups = [
            scored("a", [5, 7, 6, 9], [0.0, 1.0, 0.0, 3.0], prompt=4),
            scored("b", [8, 5, 9, 6], prompt=4, finish=["stop", "stop", "length", "stop"]),
        ]
        batches = pack(
            groups, centred(groups), optimizer_steps=1, max_batch_tokens=budget, mask_truncated=mask_truncated
        )
        settings = Train(optim="sgd", max_grad_norm=0)
        optimizer = Recording(policy.trainable(), settings=settings, schedule=Schedule(peak=0.3))
        how = UpdateSettings(
            loss=Loss(num_iterations=num_iterations, **objective), temperature=0.7, max_completion_length=9
        )
        update(policy, batches, settings=how, optimizer=optimizer)
        return optimizer.seen, len(batches[0].batches)

    return take


@pytest.mark.parametrize("dtype", BOUNDS, ids=["float64", "float32"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_8x1_2x4_and_1x8_micro_batches_give_the_same_gradient(gradients, loss_type, level, dtype):
    found = {}
    for budget, expected in CUTS.items():
        objective = {"loss_type": loss_type, "importance_sampling_level": level, "beta": 0.1}
        seen, count = gradients(budget, dtype, num_iterations=2, **objective)
        assert count == expected
        found[count] = seen
    for step in range(2):  # the second step has ratios other than 1, and a KL term
        whole = found[1][step]
        assert whole.norm() > 1e-3
        for count in (2, 8):
            assert (found[count][step] - whole).norm() <= BOUNDS[dtype] * whole.norm()


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_masked_truncated_completions_do_not_break_the_sum(gradients, loss_type):
    found = [gradients(b, torch.float64, mask_truncated=True, loss_type=loss_type)[0][0] for b in CUTS]
    kept = gradients(1000, torch.float64, loss_type=loss_type)[0][0]
    assert all((g - found[-1]).norm() <= 1e-9 * found[-1].norm() for g in found)
    assert (kept - found[-1]).norm() > 1e-3 * kept.norm()
