"""Wiring between rooms that training hangs on: faults planted here were once seen by no fast test."""

from __future__ import annotations

import copy
import io
import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from small_policy import FakePolicy, scored_group
from thread_ranks import in_ranks

from mmgrpo.checks.monitor import RunMonitor
from mmgrpo.config.loss import Loss
from mmgrpo.config.rollout import Rollout
from mmgrpo.config.train import Train
from mmgrpo.grpo.advantages import GroupAdvantages
from mmgrpo.parallel.groups import all_gather_groups
from mmgrpo.parallel.strategy import Single
from mmgrpo.training.learner import Learner
from mmgrpo.training.packing import pack

SGD = {"optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 0.0}


def learner_of(policy, *, dist=None, loss=None, **train):
    learner = Learner(
        policy,
        loss=loss or Loss(scale_rewards="none"),
        rollout=Rollout(max_completion_length=16),
        train=Train(**{**SGD, **train}),
        check_finite=True,
        dist=dist or Single(),
    )
    learner.start(10)
    return learner


def learn(learner, groups):
    return learner.learn(groups, GroupAdvantages("none").compute(groups))


def numbered(groups):
    """Groups as the first so many prompts of a run."""
    return [
        replace(one, group=replace(one.group, prompt=replace(one.group.prompt, draw_index=place)))
        for place, one in enumerate(groups)
    ]


GROUPS = numbered([scored_group("a", [5, 7, 6]), scored_group("b", [8, 5], [2.0, 0.0]), scored_group("c", [3, 2])])


@pytest.mark.parametrize("equal_micro_batches", [False, True])
def test_m01_gradients_of_ranks_are_added_up_not_averaged(equal_micro_batches):
    whole = FakePolicy()
    one = learn(learner_of(whole), GROUPS)

    policies = [FakePolicy() for _ in range(2)]  # one after another: they are drawn from the one stream of torch

    def work(dist):
        policy = policies[dist.rank]
        groups = all_gather_groups(dist, [g for i, g in enumerate(GROUPS) if i % 2 == dist.rank])
        stats = learn(learner_of(policy, dist=dist), groups)
        return policy.state_dict(), stats.metrics

    for weights, metrics in in_ranks(work, equal_micro_batches=equal_micro_batches):
        assert all(torch.allclose(weights[name], w, rtol=1e-9) for name, w in whole.state_dict().items())
        assert metrics["grad_norm"] == pytest.approx(one.metrics["grad_norm"], rel=1e-9)
        assert metrics["entropy"] == pytest.approx(one.metrics["entropy"], rel=1e-9)


def test_ranks_run_as_many_passes_as_each_other_where_their_strategy_needs_it():
    long = numbered([scored_group(name, [19, 19, 19]) for name in "abcd"])

    policies = [FakePolicy() for _ in range(2)]  # one after another: they are drawn from the one stream of torch

    def work(dist):
        policy = copy.deepcopy(policies[dist.rank])
        own = [g for i, g in enumerate(long) if (i == 0) == (dist.rank == 0)]  # one group, and three
        learner = learner_of(policy, dist=dist, max_batch_tokens=64)
        learn(learner, all_gather_groups(dist, own))
        return policy.forwards, policy.state_dict()

    (passes, weights), (others, _) = in_ranks(work, equal_micro_batches=True)
    (unequal, plain), (unlike, _) = in_ranks(work)
    assert passes == others == 3 and (unequal, unlike) == (1, 3)
    assert all(torch.equal(weights[name], w) for name, w in plain.items()), "a padded pass changes nothing"


def test_m02_a_rank_without_any_group_goes_on():
    policies = [FakePolicy() for _ in range(2)]  # one after another: they are drawn from the one stream of torch

    def work(dist):
        policy = policies[dist.rank]
        groups = all_gather_groups(dist, GROUPS if dist.rank == 0 else [])
        stats = learn(learner_of(policy, dist=dist), groups)
        return policy.state_dict(), stats.num_tokens

    (first, tokens), (second, _) = in_ranks(work)
    assert tokens > 0 and all(torch.equal(first[name], w) for name, w in second.items())


def test_m02_the_checks_of_the_first_step_pass_where_no_group_is_local(monkeypatch):
    monkeypatch.setattr("mmgrpo.checks.monitor.check_first_step", lambda *a, **k: pytest.fail("nothing is local"))
    monitor = RunMonitor.__new__(RunMonitor)
    monitor._is_first, monitor._probe = True, None
    monitor.check_rollout([replace(one, is_local=False) for one in GROUPS])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_m02_two_processes_with_dynamic_sampling_of_which_one_keeps_no_group(yaml_file, tmp_path):
    (tmp_path / "by_rank.py").write_text(
        "import os\n"
        "def by_rank(completions):\n"
        "    first = os.environ['RANK'] == '0'\n"
        "    return [float(i) if first else 1.0 for i in range(len(completions))]\n"
    )
    path = yaml_file(
        rewards=[{"fn": f"{tmp_path / 'by_rank.py'}:by_rank"}],
        rollout={"dynamic_sampling": True},
        train={"num_steps": 2, "prompts_per_step": 2},
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "mmgrpo", "train", str(path)],
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], said


def test_m01_groups_of_equal_reward_are_computed_where_a_kl_term_moves_them():
    policy = FakePolicy()
    with torch.no_grad():
        policy.head.weight.mul_(2.0)  # away from its reference
    before = {name: w.clone() for name, w in policy.state_dict().items()}
    equal = [scored_group("a", [5, 7], [1.0, 1.0])]
    assert learn(learner_of(policy), equal).skipped_optimizer_steps == 1
    assert all(torch.equal(before[name], w) for name, w in policy.state_dict().items())
    stats = learn(learner_of(policy, loss=Loss(beta=0.1, scale_rewards="none")), equal)
    assert stats.optimizer_steps == 1 and stats.metrics["kl"] > 0
    assert not all(torch.equal(before[name], w) for name, w in policy.state_dict().items())


def test_m01_mask_truncated_completions_is_handed_on_from_the_loss_section_to_packing():
    groups = [scored_group("a", [5, 7, 3], [0.0, 3.0, 1.0], finish=["stop", "length", "stop"])]
    weights = []
    for masked in (False, True):
        policy = FakePolicy()
        loss = Loss(mask_truncated_completions=masked, scale_rewards="none")
        learn(learner_of(policy, loss=loss), groups)
        weights.append(policy.state_dict())
    assert any(not torch.equal(weights[0][name], w) for name, w in weights[1].items())
    (step,) = pack(
        groups, GroupAdvantages("none").compute(groups), optimizer_steps=1, max_batch_tokens=99, mask_truncated=True
    )
    assert step.num_tokens == 8


def test_m01_groups_of_earlier_rollouts_of_a_step_stay_local():
    def work(dist):
        kept = []
        for start in range(0, 140, 2):  # more rollouts than any memory of them would hold
            groups = numbered([scored_group(f"{start + i}", [1, 1]) for i in range(2)])
            own = replace(
                groups[dist.rank],
                group=replace(
                    groups[dist.rank].group,
                    prompt=replace(groups[dist.rank].group.prompt, draw_index=start + dist.rank),
                ),
            )
            kept += all_gather_groups(dist, [own])
        return [one.is_local for one in kept]

    first, second = in_ranks(work)
    assert first == [True, False] * 70 and second == [False, True] * 70


def test_m01_the_policy_version_goes_on_after_a_resume(train):
    run = train(train={"num_steps": 1, "save_steps": 1})
    versions = []

    def look(step, metrics, groups):
        versions.extend(c.policy_version for one in groups for c in one.group.completions)

    import mmgrpo

    mmgrpo.train(resume=run.path, on_step=look, overrides={"train.num_steps": 3}, console=Console(file=io.StringIO()))
    assert sorted(set(versions)) == [1, 2]


def test_m01_adapters_are_on_while_the_rollout_writes(tiny_policy, make_prompt):
    from mmgrpo.rollout.local import LocalEngine
    from mmgrpo.types import Sampling

    policy = tiny_policy("qwen3", tune="lora", sharp=False)
    policy.fix_reference()
    with torch.no_grad():
        for name, parameter in policy.trainable():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.5)
    prompt = make_prompt(policy)
    (group,) = LocalEngine(policy).generate([prompt], [2], Sampling(max_completion_length=6))
    from mmgrpo.types import Batch, Segment

    batch = Batch(segments=(Segment(prompt=prompt, completions=group.completions, advantages=(0.0, 0.0)),))
    with torch.no_grad():
        trainer = policy.logprobs(batch, temperature=1.0).logprobs
        with policy.reference():
            base = policy.logprobs(batch, temperature=1.0).logprobs
    engine = torch.cat([c.rollout_logprobs for c in group.completions])
    assert (trainer - engine).abs().max() < 1e-3 < (base - engine).abs().max()


def test_m01_the_reference_is_read_at_the_temperature_of_the_rollout(monkeypatch):
    policy, seen = FakePolicy(), []
    real = policy.logprobs
    monkeypatch.setattr(
        policy, "logprobs", lambda batch, **options: seen.append(options["temperature"]) or real(batch, **options)
    )
    learner = Learner(
        policy,
        loss=Loss(beta=0.1),
        rollout=Rollout(temperature=0.5),
        train=Train(optimizer_steps=3, prompts_per_step=3, **SGD),
        check_finite=True,
        dist=Single(),
    )
    learner.start(1)
    stats = learn(learner, GROUPS)
    assert set(seen) == {0.5} and len(seen) == 3 + 3 + 2, "training, reference, and old log-probs of later steps"
    assert stats.metrics["kl"] >= 0
