"""Every function of the room is called with its jaxtyping annotations switched on."""

import importlib
import inspect
import pkgutil

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

import mmgrpo.grpo
from mmgrpo.grpo import advantages, kl, logprobs, loss, objective, reduce, sums

MODULES = [importlib.import_module(f"mmgrpo.grpo.{m.name}") for m in pkgutil.iter_modules(mmgrpo.grpo.__path__)]
COUNTS = objective.Counts(num_tokens=3, num_sequences=2, max_completion_length=4)
SEQUENCE, MASK = torch.tensor([0, 0, 1]), torch.tensor([True, True, True])


def ours(thing):
    return inspect.isfunction(thing) and thing.__module__.startswith("mmgrpo.grpo")


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    """Check shapes and types of every call inside the room, private functions included."""
    for module in MODULES:
        for name, function in list(vars(module).items()):
            if ours(function):
                monkeypatch.setattr(module, name, jaxtyped(typechecker=beartype)(function))


def test_advantages_and_statistics_have_the_shapes_they_declare():
    for dtype in (torch.float32, torch.float64):
        rewards, group = torch.tensor([1, 0, 2, 2], dtype=dtype), torch.tensor([0, 0, 1, 1])
        for scale in ("group", "batch", "none"):
            assert advantages.group_advantages(rewards, group, scale=scale).dtype == dtype
        assert advantages.reward_statistics(rewards, group).mean == 1.25


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo"])
def test_the_loss_and_all_below_it_have_the_shapes_they_declare(loss_type, level):
    now = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    setting = objective.Objective(loss_type=loss_type, importance_sampling_level=level, beta=0.1)
    found = loss.policy_loss(
        now, now, torch.tensor([1.0, -1.0]), SEQUENCE, MASK, objective=setting, counts=COUNTS, ref_logprobs=now
    )
    assert sums.loss_metrics([found.sums], COUNTS)["kl"] == 0


def test_log_probs_kl_and_mismatch_have_the_shapes_they_declare():
    found = logprobs.token_logprobs(torch.zeros(3, 4), SEQUENCE, temperature=1.0)
    assert logprobs.entropy(torch.zeros(3, 4)).shape == found.shape == (3,)
    assert kl.kl_estimate(found, found).shape == (3,)
    assert logprobs.mismatch(found, found, MASK).num_tokens == 3
    assert reduce.sequence_sums(found, SEQUENCE, 5).shape == (5,)


@pytest.mark.parametrize(
    "call",
    [
        lambda: advantages.group_advantages(torch.zeros(3), torch.zeros(4, dtype=torch.int64)),
        lambda: advantages.reward_statistics(torch.zeros(3), torch.zeros(3)),
        lambda: kl.kl_estimate(torch.zeros(3), torch.zeros(2)),
        lambda: logprobs.token_logprobs(torch.zeros(3, 4), torch.tensor([0]), temperature=1.0),
        lambda: logprobs.mismatch(torch.zeros(3), torch.zeros(3), torch.zeros(3)),
        lambda: reduce.sequence_sums(torch.zeros(3, 1), SEQUENCE, 2),
    ],
)
def test_a_wrong_shape_or_dtype_is_caught(call):
    with pytest.raises(TypeCheckError):
        call()
