"""A checkpoint of a real tiny policy: what is saved is what continues, whole weights or adapters."""

from __future__ import annotations

import resource

import pytest
import torch
from PIL import Image

from mmgrpo.config.loss import Loss
from mmgrpo.config.model import Freeze, Lora, Model
from mmgrpo.config.train import Train
from mmgrpo.errors import CheckpointError
from mmgrpo.policy.model.policy import load_policy
from mmgrpo.training.checkpoint import Progress, load, save
from mmgrpo.training.manifest import latest
from mmgrpo.training.optimizer import Optimizer, Schedule
from mmgrpo.training.packing import pack
from mmgrpo.training.random_streams import seed_everything
from mmgrpo.training.update import UpdateSettings, update
from mmgrpo.types import Completion, Group, Prompt, Sample, ScoredGroup

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "vision_hidden_size": 32, "vision_depth": 2}
SIZES |= {"intermediate_size": 96, "vision_intermediate_size": 64}
KINDS = {
    "full float32": {"tune": "full", "freeze": Freeze(vision=False, projector=False)},
    "full bfloat16": {"tune": "full", "dtype": "bfloat16"},
    "lora": {"tune": "lora", "lora": Lora(r=4)},
}
TRAIN = Train()


def build_optimizer(policy, *, total):
    schedule = Schedule(peak=1e-2, warmup_steps=2, total_steps=total, kind="linear")
    return Optimizer(policy.trainable(), settings=TRAIN, schedule=schedule)


def loaded(kind):
    return load_policy(Model(name="tiny:qwen2_5_vl", device="cpu", sizes=SIZES, **KINDS[kind]))


def rollout(policy, step):
    """One group of random completions about a picture, the same for every policy."""
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many items?"}]}]
    text = policy.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = dict(policy.processor(text=[text], images=[Image.new("RGB", (56, 56), "teal")], return_tensors="pt"))
    token_ids = inputs.pop("input_ids")[0]
    inputs.pop("attention_mask")
    prompt = Prompt(sample=Sample(id="a", messages=()), text=text, token_ids=token_ids, model_inputs=inputs)
    generator = torch.Generator().manual_seed(step)
    completions = tuple(
        Completion(
            token_ids=torch.randint(20, 300, (5,), generator=generator),
            rollout_logprobs=torch.zeros(5),
            loss_mask=torch.ones(5, dtype=torch.bool),
            text="",
            status="stop",
            policy_version=step,
        )
        for _ in range(4)
    )
    totals = torch.tensor([0.0, 1.0, 2.0, 0.0], dtype=torch.float64)
    return [ScoredGroup(group=Group(prompt=prompt, completions=completions), totals=totals, rewards={})]


def learn(policy, optimizer, step):
    scored = rollout(policy, step)
    advantages = [g.totals - g.totals.mean() for g in scored]
    batches = pack(scored, advantages, optimizer_steps=1, max_batch_tokens=4096, keep_zero=True)
    settings = UpdateSettings(loss=Loss(beta=0.1, num_iterations=2), temperature=1.0, max_completion_length=8)
    return update(policy, batches, settings=settings, optimizer=optimizer).metrics


def trained(policy):
    return {name: parameter.detach().clone() for name, parameter in policy.trainable()}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft reads the old name
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumed_at_step_two_equals_the_straight_run_bit_for_bit(tmp_path, kind):
    seed_everything(0)
    policy = loaded(kind)
    policy.fix_reference()
    optimizer = build_optimizer(policy, total=8)
    before = trained(policy)
    for step in range(4):
        if step == 2:
            progress = Progress(step=2, policy_version=2, feed={})
            path = save(tmp_path, progress, policy=policy, optimizer=optimizer)
        straight = learn(policy, optimizer, step)
    assert any(not torch.equal(before[n], p) for n, p in trained(policy).items())

    resumed = loaded(kind)
    again = build_optimizer(resumed, total=8)
    assert load(path, policy=resumed, optimizer=again).step == 2
    for step in range(2, 4):
        metrics = learn(resumed, again, step)
    after = trained(resumed)
    assert all(torch.equal(after[n], p) for n, p in trained(policy).items())
    assert {k: v for k, v in metrics.items() if "seconds" not in k} == {
        k: v for k, v in straight.items() if "seconds" not in k
    }
    assert metrics["kl"] > 0


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft reads the old name
@pytest.mark.parametrize("kind", ["full float32", "lora"])
def test_a_disk_that_fills_while_weights_are_written_is_one_clear_error(tmp_path, kind):
    policy = loaded(kind)
    optimizer = build_optimizer(policy, total=4)
    save(tmp_path, Progress(step=1, policy_version=1, feed={}), policy=policy, optimizer=optimizer)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match="Free disk space"):
            save(tmp_path, Progress(step=2, policy_version=2, feed={}), policy=policy, optimizer=optimizer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert latest(tmp_path) == tmp_path / "step-1"
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]
