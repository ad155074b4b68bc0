"""A loss of a user's own: one file that the YAML names, and no edit elsewhere."""

import textwrap

import numpy as np
import pytest
import torch
from packed_loss import loss_of

import mmgrpo
from mmgrpo.errors import ConfigError, TrainingError
from mmgrpo.grpo.inputs import Counts
from mmgrpo.grpo.loss import load_loss

CISPO = """
import torch
from mmgrpo.grpo.inputs import Ratios, TokenLoss

class Cispo:
    \"\"\"-sg(min(w, bound)) A log p: clipped ratios weigh the token and keep its gradient.\"\"\"

    def __init__(self, bound=2.0):
        self.bound = bound

    def __call__(self, inputs, settings):
        ratio = inputs.log_ratio.detach().exp()
        weight = ratio.clamp(max=self.bound)
        high = (ratio > self.bound) & inputs.loss_mask
        ratios = Ratios(
            log_ratio=inputs.log_ratio, trained=inputs.loss_mask,
            clipped_low=torch.zeros_like(high), clipped_high=high,
        )
        return TokenLoss(
            values=-weight * inputs.advantages * inputs.logprobs, ratios=ratios, metrics={"cispo/weight": weight}
        )

def corrected(inputs, settings, cap=1.5):
    \"\"\"Policy gradient, each token weighted by trainer over engine at the start of the step, cut at cap.\"\"\"
    weight = (inputs.old_logprobs - inputs.rollout_logprobs).exp().clamp(max=cap)
    return -weight * inputs.log_ratio.exp() * inputs.advantages

def with_entropy(inputs, settings, coefficient=0.01):
    return -inputs.log_ratio.exp() * inputs.advantages - coefficient * inputs.entropy

with_entropy.needs_entropy = True
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "own_loss.py").write_text(CISPO)
    return tmp_path / "own_loss.py"


def random_step(seed, rows=5, columns=6):
    rng = np.random.default_rng(seed)
    present = np.arange(columns) < rng.integers(1, columns + 1, rows)[:, None]
    mask = present & (rng.random((rows, columns)) < 0.8)
    old = -rng.exponential(2.0, (rows, columns))
    return {
        "now": old + rng.normal(0, 0.8, (rows, columns)),
        "old": old,
        "rollout": old + rng.normal(0, 0.3, (rows, columns)),
        "advantages": rng.normal(0, 1.5, rows),
        "mask": mask,
        "present": present,
    }


def packed_loss(step, surrogate):
    """The loss and its gradient on the padded array."""
    keep, mask = step["present"], step["mask"]
    flat = {name: torch.tensor(step[name][keep]) for name in ("now", "old", "rollout")}
    now = flat["now"].requires_grad_()
    counts = Counts(num_tokens=int(mask.sum()), num_sequences=int(mask.any(1).sum()), max_completion_length=6)
    found = loss_of(
        now, flat["old"], torch.tensor(step["advantages"]), torch.tensor(np.nonzero(keep)[0]),
        torch.tensor(mask[keep]), counts=counts, rollout=flat["rollout"], surrogate=surrogate,
    )  # fmt: skip
    found.loss.backward()
    gradient = np.zeros_like(step["now"])
    gradient[keep] = now.grad.numpy()
    return found, gradient


def test_a_class_with_args_equals_a_numpy_oracle(file, tmp_path):
    cispo = load_loss("own_loss.py:Cispo", {"bound": 1.3}, folder=tmp_path)
    clipped = 0
    for seed in range(6):
        step = random_step(seed)
        found, gradient = packed_loss(step, cispo)
        weight = np.minimum(np.exp(step["now"] - step["old"]), 1.3)
        values = -weight * step["advantages"][:, None] * step["now"] * step["mask"]
        slope = -weight * step["advantages"][:, None] * step["mask"] / step["mask"].sum()
        assert found.loss.item() == pytest.approx(values.sum() / step["mask"].sum(), rel=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=1e-12, atol=1e-15)
        assert found.sums.token_sums["cispo/weight"] == pytest.approx((weight * step["mask"]).sum())
        clipped += found.sums.clipped_high
    assert clipped > 3, "the random steps must reach the bound, or the test is too easy"


def test_a_function_with_args_reads_the_log_probs_of_the_rollout(file, tmp_path):
    step = random_step(1)
    found, _ = packed_loss(step, load_loss("own_loss.py:corrected", {"cap": 1.2}, folder=tmp_path))
    weight = np.minimum(np.exp(step["old"] - step["rollout"]), 1.2)
    values = -weight * np.exp(step["now"] - step["old"]) * step["advantages"][:, None] * step["mask"]
    assert found.loss.item() == pytest.approx(values.sum() / step["mask"].sum(), rel=1e-12)


@pytest.mark.parametrize(("name", "args"), [("Cispo", {"bound": 1.5}), ("with_entropy", {"coefficient": 0.05})])
def test_a_yaml_that_names_it_trains_and_logs_what_it_measured(yaml_file, file, name, args):
    path = yaml_file(loss={"fn": f"{file.name}:{name}", "args": args}, train={"num_steps": 2})
    run = mmgrpo.train(path)
    rows = run.metrics()
    assert len(rows) == 2 and all(row["optimizer_steps"] == 1 for row in rows)
    assert ("cispo/weight" in rows[0]) == (name == "Cispo")
    assert run.metrics() != mmgrpo.train(yaml_file("plain", train={"num_steps": 2})).metrics()


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        ("def own(inputs, settings): return inputs.logprobs.sum()", TrainingError, "not one value per token"),
        ("def own(inputs, settings): raise KeyError('delta_t')", TrainingError, "own raised(.|\\n)*delta_t"),
        ("def own(inputs): return inputs.logprobs", TrainingError, "own raised"),
        ("own = 3", ConfigError, "cannot be called"),
    ],
)
def test_a_loss_that_breaks_its_contract_is_one_message_with_its_name(train, tmp_path, body, error, said):
    (tmp_path / "bad.py").write_text(textwrap.dedent(body))
    with pytest.raises(error, match=said):
        train(loss={"fn": f"{tmp_path / 'bad.py'}:own"})
