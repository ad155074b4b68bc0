"""The nouns: a completion is a sequence of spans, and what cannot be trained on is refused."""

from dataclasses import replace

import pytest
import torch

from mmgrpo.errors import TrainingError
from mmgrpo.types import Completion, Decoded, Prompt, Sample, Segment, Span


def completion(**changed):
    facts = {
        "token_ids": torch.arange(5),
        "rollout_logprobs": torch.zeros(5),
        "loss_mask": torch.ones(5, dtype=torch.bool),
        "text": "",
        "status": "stop",
        "policy_version": 3,
    }
    return Completion(**{**facts, **changed})


ENVIRONMENT = Span(num_tokens=2, author="environment", policy_version=None)


def test_the_usual_completion_is_one_span_of_the_policy():
    assert completion().spans == (Span(num_tokens=5, author="policy", policy_version=3),)
    assert completion().media == ()


def test_a_copy_keeps_its_spans():
    spans = (Span(num_tokens=3, policy_version=2), Span(num_tokens=2, policy_version=3))
    assert replace(completion(spans=spans), text="other").spans == spans


@pytest.mark.parametrize("sizes", [(3,), (3, 3), (5, 0)])
def test_spans_cover_the_tokens(sizes):
    with pytest.raises(ValueError, match="do not cover"):
        completion(spans=tuple(Span(num_tokens=size, policy_version=0) for size in sizes))


def test_tokens_of_an_environment_are_never_trained():
    spans = (Span(num_tokens=3, policy_version=3), ENVIRONMENT)
    with pytest.raises(ValueError, match="Tokens 3 to 4 were written by an environment"):
        completion(spans=spans)
    mask = torch.tensor([True, True, True, False, False])
    assert completion(spans=spans, loss_mask=mask).spans == spans


def test_media_inside_a_completion_are_refused_by_name_not_dropped():
    image = Decoded(kind="image", data=None)
    spans = (Span(num_tokens=3, policy_version=3), replace(ENVIRONMENT, media=(image,)))
    mask = torch.tensor([True, True, True, False, False])
    answered = completion(spans=spans, loss_mask=mask)
    assert answered.media == (image,)
    prompt = Prompt(
        sample=Sample(id="row 7", messages=()), text="", token_ids=torch.zeros(1, dtype=torch.long), model_inputs={}
    )
    with pytest.raises(TrainingError, match=r"Media inside a completion(.|\n)*sample row 7(.|\n)*image inside one"):
        Segment(prompt=prompt, completions=(answered,), advantages=(0.0,))
