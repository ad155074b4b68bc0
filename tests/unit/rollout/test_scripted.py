"""The shipped fake engine."""

import pytest
import torch

from mmgrpo.errors import RolloutError
from mmgrpo.rollout.scripted import END, ScriptedEngine
from mmgrpo.types import Prompt, Sample, Sampling

LIMIT = Sampling(max_completion_length=6)


def prompt(name):
    return Prompt(sample=Sample(id=name, messages=()), text="", token_ids=torch.zeros(1), model_inputs={})


def test_texts_are_replayed_in_turn_for_each_prompt():
    engine = ScriptedEngine({"a": ["1", "2"], "b": ["3"]})
    groups = engine.generate([prompt("b"), prompt("a")], [1, 3], LIMIT)
    assert [[c.text for c in g.completions] for g in groups] == [["3"], ["1", "2", "1"]]
    assert engine.calls == [(("b", "a"), (1, 3), LIMIT)]


def test_a_function_may_write_the_script():
    engine = ScriptedEngine(lambda sample, index: f"{sample.id}{index}")
    assert [c.text for c in engine.generate([prompt("x")], [2], LIMIT)[0].completions] == ["x0", "x1"]


def test_a_text_that_ends_has_its_end_token_and_a_longer_one_is_cut():
    short, long = ScriptedEngine({"a": ["abcde", "abcdef"]}).generate([prompt("a")], [2], LIMIT)[0].completions
    assert (short.status, short.token_ids.tolist()) == ("stop", [*b"abcde", END])
    assert (long.status, long.token_ids.tolist(), long.text) == ("length", [*b"abcdef"], "abcdef")
    cut = ScriptedEngine({"a": ["abcdefgh"]}).generate([prompt("a")], [1], LIMIT)[0].completions[0]
    assert cut.text == "abcdef"


def test_an_empty_text_is_one_end_token():
    (completion,) = ScriptedEngine({"a": [""]}).generate([prompt("a")], [1], LIMIT)[0].completions
    assert completion.token_ids.tolist() == [END]
    assert completion.rollout_logprobs.tolist() == [-1.0]
    assert completion.loss_mask.tolist() == [True]


def test_completions_carry_the_version_of_the_last_weights():
    engine = ScriptedEngine({"a": ["1"]}, logprob=-0.5)
    engine.load_weights([], 7)
    (completion,) = engine.generate([prompt("a")], [1], LIMIT)[0].completions
    assert completion.policy_version == 7
    assert completion.rollout_logprobs.tolist() == [-0.5, -0.5]


def test_a_sample_without_a_script_is_named():
    with pytest.raises(RolloutError, match="sample b"):
        ScriptedEngine({"a": ["1"]}).generate([prompt("b")], [1], LIMIT)


def test_with_a_tokenizer_its_tokens_and_its_end_are_used(tiny_policy):
    tokenizer = tiny_policy(sharp=False).tokenizer
    engine = ScriptedEngine({"a": ["<answer>3</answer>"]}, tokenizer=tokenizer)
    (completion,) = engine.generate([prompt("a")], [1], Sampling(max_completion_length=32))[0].completions
    assert completion.token_ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(completion.token_ids[:-1]) == completion.text == "<answer>3</answer>"
