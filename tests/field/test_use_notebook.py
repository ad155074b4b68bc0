"""The notebook face in use: open a run again, hand a model over, ask for more than text and numbers."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

import mmgrpo
from mmgrpo.errors import CheckpointError, ConfigError

QUIET = Console(file=io.StringIO())


def test_w25_a_finished_run_is_opened_again_with_its_policy_rows_rewards_and_evaluations(train):
    run = train(eval={"sampled": False})
    again = mmgrpo.load(run.path, console=QUIET)
    for (name, a), (_, b) in zip(run.policy.trainable(), again.policy.trainable(), strict=True):
        assert torch.equal(a, b), name
    assert (again.steps, again.before.metrics(), again.after.metrics()) == (
        run.steps,
        run.before.metrics(),
        run.after.metrics(),
    )
    assert again.evaluate().greedy_rows == run.after.greedy_rows
    assert again.generate(again.samples()[0]) == run.generate(run.samples()[0])
    assert again.metrics() == run.metrics() and again.improved() == run.improved()


def test_w25_an_earlier_checkpoint_is_opened_as_it_was(train):
    run = train(train={"save_steps": 1})
    assert mmgrpo.load(run.path / "checkpoints" / "step-2", console=QUIET).steps == 2


def test_w25_a_run_whose_rewards_were_functions_opens_and_says_what_an_evaluation_needs(train):
    def letters(completions):
        return [float(len(text)) for text in completions]

    run = train(rewards=[letters])
    again = mmgrpo.load(run.path, console=QUIET)
    assert again.generate("How many?")
    with pytest.raises(mmgrpo.MmgrpoError, match=r"were Python objects(.|\n)*mmgrpo.load\(run, rewards="):
        again.evaluate()
    assert mmgrpo.load(run.path, rewards=[letters], console=QUIET).evaluate().greedy.rows == 4


def test_w25_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="This is no run folder"):
        mmgrpo.load(tmp_path, console=QUIET)


def test_w25_details_of_a_completion_are_ids_log_probs_and_rewards(train):
    run = train()
    scored = run.generate(run.samples()[0], count=2, details=True)
    first, second = scored.group.completions
    assert len(first.token_ids) == len(first.rollout_logprobs) and bool((first.rollout_logprobs <= 0).all())
    assert list(scored.rewards) == ["letters"] and scored.rewards["letters"].shape == (2,)
    assert [first.text, second.text] == run.generate(run.samples()[0], count=2)
    bare = run.generate("How many?", details=True)
    assert bare.rewards == {} and bool(bare.totals.isnan().all())


def test_w25_a_model_of_transformers_may_be_handed_over(train, sections, tiny_policy):
    policy = tiny_policy(sizes=sections()["model"]["sizes"], sharp=False)
    plain, processor = policy.model, policy.processor
    given = {key: value for key, value in sections("given").items() if key != "model"}
    before = {name: p.detach().clone() for name, p in plain.named_parameters()}
    run = mmgrpo.train(model=plain, processor=processor, console=QUIET, **given)
    assert run.policy.model is plain
    assert any(not torch.equal(p, before[name]) for name, p in plain.named_parameters())
    named = train("named", model={"freeze": {"vision": True, "projector": True}})
    assert run.metrics()[0]["reward"] == pytest.approx(named.metrics()[0]["reward"])


@pytest.mark.parametrize(("given", "told"), [("model", "without its processor"), ("processor", "without its model")])
def test_w25_a_model_needs_its_processor(given, told, sections, tiny_policy):
    policy = tiny_policy()
    with pytest.raises(ConfigError, match=told):
        mmgrpo.train(**{**sections(), given: getattr(policy, given)})
