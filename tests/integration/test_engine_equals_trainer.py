"""The local engine: its log-probs are the trainer's, each prompt is computed once, and streams decide the tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.policy.attention import interface, prefix
from mmgrpo.rollout.local import LocalEngine, end_tokens
from mmgrpo.types import Batch, Sampling, Segment

PACKED = [
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3",
    "idefics3",
    "glm4v",
    "internvl",
    "llava_onevision",
    "mistral3",
    "qwen2_audio",
    "qwen2_5_omni",
    "qwen3_omni_moe",
]
ROWS = ["gemma3", "qwen3_5", "qwen3_5_moe", "lfm2_vl"]
FORMS = [*[(f, layout) for f in PACKED for layout in ("packed", "rows")], *[(f, "rows") for f in ROWS]]
CUTS = {"top_p": 0.8, "top_k": 40, "min_p": 0.02, "repetition_penalty": 1.3}
STOPS = ("e", "7", "<", "a", "o", "n")


@pytest.fixture
def three_prompts(make_prompt, make_picture, make_beep):
    """A picture, two pictures of other sizes, none (or so many sounds); all of different lengths."""

    def build(policy):
        sees, hears = "image" in policy.family.kinds, "audio" in policy.family.kinds
        pictures = [[(56, 56)], [(84, 140), (56, 112)], []]
        texts = ["How many?", "What is there in the picture?", "Hi"]
        return [
            make_prompt(
                policy,
                text,
                images=[make_picture(*size, seed=i) for size in sizes] if sees else [],
                audios=[make_beep(0.3 + 0.2 * i, seed=i) for _ in sizes] if hears else [],
                draw_index=i,
                sample_id=str(i),
            )
            for i, (text, sizes) in enumerate(zip(texts, pictures, strict=True))
        ]

    return build


def batch_of(groups):
    return Batch(
        segments=tuple(
            Segment(prompt=g.prompt, completions=g.completions, advantages=(0.0,) * len(g.completions)) for g in groups
        )
    )


def trainer_and_engine(policy, groups, temperature):
    batch = batch_of(groups)
    with torch.no_grad():
        trainer = policy.logprobs(batch, temperature=temperature).logprobs
    return trainer, torch.cat([c.rollout_logprobs for c in batch.completions])


def tokens_of(groups):
    return {(g.prompt.draw_index, i): c.token_ids.tolist() for g in groups for i, c in enumerate(g.completions)}


@pytest.mark.parametrize("cuts", [{}, CUTS], ids=["whole", "cut"])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize(("family", "layout"), FORMS)
def test_recorded_logprobs_are_the_trainers(family, layout, temperature, cuts, tiny_policy, three_prompts):
    policy = tiny_policy(family, layout=layout)
    sampling = Sampling(max_completion_length=24, temperature=temperature, stop=STOPS, seed=1, **cuts)
    groups = LocalEngine(policy).generate(three_prompts(policy), [4, 5, 3], sampling)
    assert len({len(c.token_ids) for g in groups for c in g.completions}) > 2
    trainer, engine = trainer_and_engine(policy, groups, temperature)
    assert (trainer - engine).abs().max() < 1e-4
    other, _ = trainer_and_engine(policy, groups, temperature + 0.2)
    assert (other - engine).abs().max() > 1e-2


def test_recorded_logprobs_are_the_trainers_without_kernels_for_parts_of_attention(
    tiny_policy, three_prompts, monkeypatch
):
    """As on a device whose kernels do not tell their log-sum-exp."""
    for module in (interface, prefix):
        monkeypatch.setattr(module, "has_kernels", lambda device: False)
    policy = tiny_policy()
    sampling = Sampling(max_completion_length=24, stop=STOPS, seed=1)
    groups = LocalEngine(policy).generate(three_prompts(policy), [4, 5, 3], sampling)
    trainer, engine = trainer_and_engine(policy, groups, 1.0)
    assert (trainer - engine).abs().max() < 1e-4


@pytest.mark.parametrize(("family", "layout"), FORMS)
def test_prompts_are_prefilled_once_together_and_finished_rows_leave(family, layout, tiny_policy, three_prompts):
    """Decode row-steps are the sum of completion lengths less one each: the prefill predicts the first token."""
    policy = tiny_policy(family, layout=layout)
    shapes = []
    policy.module.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["inputs_embeds"].shape[:2])), with_kwargs=True
    )
    prompts = three_prompts(policy)
    engine = LocalEngine(policy)
    groups = engine.generate(prompts, [4, 5, 3], Sampling(max_completion_length=24, stop=STOPS, seed=2))
    lengths = [len(p.token_ids) for p in prompts]
    assert shapes[0] == ((1, sum(lengths)) if layout == "packed" else (3, max(lengths)))
    completions = [len(c.token_ids) for g in groups for c in g.completions]
    assert sum(rows * columns for rows, columns in shapes[1:]) == sum(completions) - len(completions)
    assert engine.decode_row_steps == sum(completions) - len(completions)
    assert len(shapes) == max(completions)
    rows = [rows * columns for rows, columns in shapes[1:]]
    assert rows == [sum(c > t for c in completions) for t in range(1, max(completions))]
    assert rows[0] > rows[-1]


@pytest.mark.parametrize("layout", ["packed", "rows"])
def test_splitting_ordering_and_group_size_change_no_token(layout, tiny_policy, three_prompts):
    policy = tiny_policy(layout=layout)
    prompts = three_prompts(policy)
    sampling = Sampling(max_completion_length=24, stop=STOPS, seed=3)
    together = tokens_of(LocalEngine(policy).generate(prompts, [4, 4, 4], sampling))
    assert len(set(map(tuple, together.values()))) == 12
    split = tokens_of(LocalEngine(policy, max_rows=5).generate(prompts, [4, 4, 4], sampling))
    turned = tokens_of(LocalEngine(policy, max_rows=1).generate(prompts[::-1], [4, 4, 4], sampling))
    larger = tokens_of(LocalEngine(policy).generate(prompts, [6, 5, 4], sampling))
    assert split == turned == together
    assert {key: larger[key] for key in together} == together


def test_packed_and_rows_write_the_same_tokens(tiny_policy, three_prompts):
    sampling = Sampling(max_completion_length=24, stop=STOPS, seed=3)
    written = []
    for layout in ("packed", "rows"):
        policy = tiny_policy(layout=layout)
        written.append(tokens_of(LocalEngine(policy).generate(three_prompts(policy), [4, 4, 4], sampling)))
    assert written[0] == written[1]


@pytest.mark.parametrize("change", [{"seed": 4}, {"stream": "eval"}])
def test_another_seed_or_stream_writes_other_tokens_and_the_same_one_the_same(change, tiny_policy, three_prompts):
    policy = tiny_policy()
    prompts = three_prompts(policy)
    base = {"max_completion_length": 12, "seed": 3}
    train = tokens_of(LocalEngine(policy).generate(prompts, [2, 2, 2], Sampling(**base)))
    again = tokens_of(LocalEngine(policy).generate(prompts, [2, 2, 2], Sampling(**base)))
    other = tokens_of(LocalEngine(policy).generate(prompts, [2, 2, 2], Sampling(**(base | change))))
    assert train == again
    assert all(train[key] != other[key] for key in train)


@pytest.mark.parametrize("layout", ["packed", "rows"])
def test_greedy_takes_the_trainers_likeliest_token_each_time(layout, tiny_policy, three_prompts):
    policy = tiny_policy(layout=layout)
    groups = LocalEngine(policy).generate(
        three_prompts(policy), [2, 1, 1], Sampling(max_completion_length=8, temperature=0.0)
    )
    assert torch.equal(groups[0].completions[0].token_ids, groups[0].completions[1].token_ids)
    trainer, engine = trainer_and_engine(policy, groups, 1.0)
    assert (trainer - engine).abs().max() < 1e-4
    completion = groups[0].completions[0]
    batch = batch_of(groups[:1])
    with torch.no_grad():
        best = policy.logprobs(batch, temperature=1.0).logprobs[: len(completion.token_ids)]
        for token in range(0, 500, 7):
            changed = completion.token_ids.clone()
            changed[0] = token
            segment = replace(
                batch.segments[0], completions=(replace(completion, token_ids=changed),), advantages=(0.0,)
            )
            other = policy.logprobs(Batch(segments=(segment,)), temperature=1.0).logprobs[0]
            assert token == completion.token_ids[0] or other < best[0]


@pytest.mark.parametrize("layout", ["packed", "rows"])
def test_recomputing_activations_does_not_touch_the_engine(layout, tiny_policy, three_prompts):
    sampling = Sampling(max_completion_length=12, seed=3)
    written = []
    for checkpointing in (False, True):
        policy = tiny_policy(layout=layout, gradient_checkpointing=checkpointing)
        training = policy.model.training
        groups = LocalEngine(policy).generate(three_prompts(policy), [2, 2, 2], sampling)
        assert policy.model.training == training == checkpointing
        written.append(tokens_of(groups))
    assert written[0] == written[1]


def script(policy, tokens):
    """Make the model want these tokens, one after the other, through its own head."""
    head, step = policy.module.head, iter(tokens)

    def scripted(hidden):
        logits = head(hidden).clone()
        logits[:, next(step)] = 1e4
        return logits

    policy.module.head = scripted


@pytest.mark.parametrize("which", [0, 1])
def test_every_end_token_stops_and_is_part_of_the_completion(which, tiny_policy, three_prompts):
    policy = tiny_policy()
    end = sorted(end_tokens(policy))
    assert end == sorted([policy.tokenizer.eos_token_id, policy.tokenizer.pad_token_id])
    body = policy.tokenizer.encode("<answer>3</answer>")
    script(policy, [*body, end[which], *body])
    sampling = Sampling(max_completion_length=len(body) + 4)
    (group,) = LocalEngine(policy).generate(three_prompts(policy)[:1], [2], sampling)
    for completion in group.completions:
        assert completion.token_ids.tolist() == [*body, end[which]]
        assert (completion.text, completion.status) == ("<answer>3</answer>", "stop")
        assert completion.loss_mask.all() and len(completion.rollout_logprobs) == len(body) + 1


@pytest.mark.parametrize(
    ("text", "stop"), [("a b数\uff01c", "数\uff01"), ("one</answer> two", "</answer>"), ("xé", "é")]
)
def test_a_stop_string_ends_a_completion_also_when_split_over_tokens(text, stop, tiny_policy, three_prompts):
    policy = tiny_policy()
    tokens = policy.tokenizer.encode(text)
    shown = [policy.tokenizer.decode(tokens[: i + 1]) for i in range(len(tokens))]
    length = next(i for i, t in enumerate(shown) if stop in t) + 1
    assert not any(stop == policy.tokenizer.decode([t]) for t in tokens)
    script(policy, tokens)
    sampling = Sampling(max_completion_length=len(tokens), stop=("never", stop))
    (group,) = LocalEngine(policy).generate(three_prompts(policy)[:1], [1], sampling)
    assert group.completions[0].token_ids.tolist() == tokens[:length]
    assert group.completions[0].text == shown[length - 1]
    assert group.completions[0].status == "stop"


def test_special_tokens_between_do_not_hide_a_stop_string(tiny_policy, three_prompts):
    policy = tiny_policy()
    a, b = (policy.tokenizer.encode(letter)[0] for letter in "qz")
    start = policy.tokenizer.convert_tokens_to_ids("<|vision_start|>")
    script(policy, [a, *[start] * 20, b, a])
    (group,) = LocalEngine(policy).generate(
        three_prompts(policy)[:1], [1], Sampling(max_completion_length=23, stop=("qz",))
    )
    assert group.completions[0].text == "qz"
    assert len(group.completions[0].token_ids) == 22


def test_media_placeholders_are_never_written_even_if_the_model_wants_nothing_else(tiny_policy, three_prompts):
    policy = tiny_policy()
    config = policy.model.config
    banned = {config.image_token_id, config.video_token_id}
    head = policy.module.head

    def eager(hidden):
        return head(hidden).index_fill(1, torch.tensor(sorted(banned)), 1e4)

    policy.module.head = eager
    engine = LocalEngine(policy)
    groups = engine.generate(three_prompts(policy), [4, 4, 4], Sampling(max_completion_length=10))
    written = {t for tokens in tokens_of(groups).values() for t in tokens}
    assert not written & banned
    assert engine.metrics()["sampling/removed_probability"].value > 0.99
    assert engine.metrics() == {}


def test_completions_carry_the_version_of_the_weights_that_wrote_them(tiny_policy, three_prompts):
    policy = tiny_policy("qwen3")
    engine = LocalEngine(policy)
    engine.load_weights(policy.named_weights(), version=7)
    groups = engine.generate(three_prompts(policy), [1, 1, 1], Sampling(max_completion_length=2))
    assert {c.policy_version for g in groups for c in g.completions} == {7}


def test_logits_that_are_not_finite_stop_with_the_sample(tiny_policy, three_prompts):
    from mmgrpo.errors import RolloutError

    policy = tiny_policy("qwen3")
    with torch.no_grad():
        policy.model.model.norm.weight[0] = float("nan")
    with pytest.raises(RolloutError, match="sample 0, token 0"):
        LocalEngine(policy).generate(three_prompts(policy), [1, 1, 1], Sampling(max_completion_length=2))


def test_a_count_of_zero_is_refused(tiny_policy, three_prompts):
    from mmgrpo.errors import RolloutError

    policy = tiny_policy("qwen3")
    with pytest.raises(RolloutError, match="at least one"):
        LocalEngine(policy).generate(three_prompts(policy), [1, 0, 1], Sampling(max_completion_length=2))
