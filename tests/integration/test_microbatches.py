"""However a rollout is cut into micro-batches, the gradient is the same: on a tiny vision-language model."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as modeling

from mmgrpo.config.loss import Loss
from mmgrpo.config.model import Freeze, Model
from mmgrpo.config.train import Train
from mmgrpo.policy.model.policy import load_policy
from mmgrpo.training.optimizer import Optimizer, Schedule
from mmgrpo.training.packing import pack
from mmgrpo.training.update import UpdateSettings, update
from mmgrpo.types import Completion, Group, Prompt, Sample, ScoredGroup

LOSS_TYPES = ["grpo", "dr_grpo", "dapo", "bnpo"]
BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-5}
LENGTHS = [[5, 7, 6, 9], [8, 5, 9, 6]]
REWARDS = [[0.0, 1.0, 0.0, 3.0], [1.0, 0.0, 2.0, 1.0]]


class Recording(Optimizer):
    """Keeps the gradients of the latest optimizer step, and does not move the weights."""

    def step(self):
        self.seen = torch.cat([g.reshape(-1).clone() for _, g in self.gradients()])
        self.skip()
        return float(self.seen.norm())


def norm_in_own_precision(self, hidden):
    return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def rotate_in_own_precision(q, k, cos, sin):
    cos, sin = cos.unsqueeze(-2).to(q.dtype), sin.unsqueeze(-2).to(q.dtype)
    return q * cos + modeling.rotate_half(q) * sin, k * cos + modeling.rotate_half(k) * sin


@pytest.fixture(scope="module")
def own_precision():
    """Transformers computes norms and picture positions in float32 whatever the weights are; here it must not.

    The prompt's gradient would be rounded to float32 once per micro-batch: 3e-8 relative, above the bound.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling.Qwen2_5_VLRMSNorm, "forward", norm_in_own_precision)
        patch.setattr(modeling, "apply_rotary_pos_emb_vision", rotate_in_own_precision)
        yield


@pytest.fixture(scope="module", params=BOUNDS, ids=["float64", "float32"])
def policy(request, own_precision):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "vision_hidden_size": 32, "vision_depth": 2}
    sizes |= {"intermediate_size": 96, "vision_intermediate_size": 64}
    freeze = Freeze(vision=False, projector=False)
    policy = load_policy(Model(name="tiny:qwen2_5_vl", device="cpu", dtype="float32", sizes=sizes, freeze=freeze))
    policy.model.to(request.param)
    return policy


def prompt_of(policy, name, colour):
    """A question about a picture."""
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many items?"}]}]
    text = policy.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    picture = Image.new("RGB", (56, 84), colour)
    inputs = dict(policy.processor(text=[text], images=[picture], return_tensors="pt"))
    token_ids = inputs.pop("input_ids")[0]
    inputs.pop("attention_mask")
    return Prompt(sample=Sample(id=name, messages=()), text=text, token_ids=token_ids, model_inputs=inputs)


@pytest.fixture(scope="module")
def groups(policy):
    generator = torch.Generator().manual_seed(0)

    def completion(length):
        return Completion(
            token_ids=torch.randint(20, 300, (length,), generator=generator),
            rollout_logprobs=torch.zeros(length),
            loss_mask=torch.ones(length, dtype=torch.bool),
            text="",
            status="stop",
            policy_version=0,
        )

    found = []
    for name, colour, lengths, rewards in zip("ab", ["red", "navy"], LENGTHS, REWARDS, strict=True):
        group = Group(prompt=prompt_of(policy, name, colour), completions=tuple(map(completion, lengths)))
        found.append(ScoredGroup(group=group, totals=torch.tensor(rewards, dtype=torch.float64), rewards={}))
    return found


def gradient(policy, groups, budget, loss_type):
    """The gradient of one optimizer step, and how many micro-batches it was summed over."""
    advantages = [g.totals - g.totals.mean() for g in groups]
    batches = pack(groups, advantages, optimizer_steps=1, max_batch_tokens=budget)
    settings = Train(optim="sgd", max_grad_norm=0)
    optimizer = Recording(policy.trainable(), settings=settings, schedule=Schedule(peak=0.1))
    how = UpdateSettings(loss=Loss(loss_type=loss_type), temperature=0.7, max_completion_length=9)
    update(policy, batches, settings=how, optimizer=optimizer)
    return optimizer.seen, len(batches[0].batches)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_l06_l07_8x1_2x4_and_1x8_micro_batches_give_the_same_gradient(policy, groups, loss_type):
    prompt = len(groups[0].group.prompt.token_ids)
    budgets = {8: prompt + 9, 2: prompt + sum(LENGTHS[1]), 1: 10_000}
    found = {}
    for expected, budget in budgets.items():
        found[expected], count = gradient(policy, groups, budget, loss_type)
        assert count == expected
    bound = BOUNDS[policy.dtype]
    assert found[1].norm() > 1e-3
    assert all((found[n] - found[1]).norm() <= bound * found[1].norm() for n in (2, 8))
