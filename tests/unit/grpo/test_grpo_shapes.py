"""Every function of the room is called with its jaxtyping annotations switched on."""

import importlib
import inspect
import pkgutil

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped
from packed_loss import loss_of, metrics_of

import mmgrpo.grpo
from mmgrpo.grpo import advantages, inputs, logprobs

MODULES = [importlib.import_module(f"mmgrpo.grpo.{m.name}") for m in pkgutil.iter_modules(mmgrpo.grpo.__path__)]
COUNTS = inputs.Counts(num_tokens=3, num_sequences=2, max_completion_length=4)
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
    setting = {"loss_type": loss_type, "importance_sampling_level": level, "beta": 0.1}
    found = loss_of(now, now, torch.tensor([1.0, -1.0]), SEQUENCE, MASK, counts=COUNTS, ref=now, **setting)
    assert metrics_of([found.sums], COUNTS)["kl"] == 0


def test_log_probs_kl_and_mismatch_have_the_shapes_they_declare():
    every = logprobs.log_distribution(torch.zeros(3, 4))
    found = logprobs.chosen_logprobs(every, SEQUENCE)
    assert logprobs.entropy_of(every).shape == found.shape == (3,)
    assert logprobs.kl_estimate(found, found).shape == (3,)
    assert logprobs.mismatch(found, found, MASK).num_tokens == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda: advantages.group_advantages(torch.zeros(3), torch.zeros(4, dtype=torch.int64)),
        lambda: advantages.reward_statistics(torch.zeros(3), torch.zeros(3)),
        lambda: logprobs.kl_estimate(torch.zeros(3), torch.zeros(2)),
        lambda: logprobs.chosen_logprobs(torch.zeros(3, 4), torch.tensor([0.0])),
        lambda: logprobs.mismatch(torch.zeros(3), torch.zeros(3), torch.zeros(3)),
    ],
)
def test_a_wrong_shape_or_dtype_is_caught(call):
    with pytest.raises(TypeCheckError):
        call()
