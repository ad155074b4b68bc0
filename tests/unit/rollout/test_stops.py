"""Stop strings are found in the token that ends them, and other tokens are not decoded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmgrpo.policy.families.tiny.parts import build_tokenizer
from mmgrpo.rollout.local import StopStrings, special_tokens

TOKENIZER = build_tokenizer()
SPECIAL = special_tokens(TOKENIZER)
TEXT = st.text(st.sampled_from("ab </>\n数é\uff0cx"), min_size=1, max_size=6)


class Counting:
    """A tokenizer that counts how often it decodes several tokens."""

    clean_up_tokenization_spaces = False

    def __init__(self):
        self.calls = 0

    def decode(self, tokens, *, skip_special_tokens):
        self.calls += len(tokens) > 1
        return TOKENIZER.decode(tokens, skip_special_tokens=skip_special_tokens)


@given(st.lists(TEXT, min_size=1, max_size=12), st.lists(TEXT, min_size=1, max_size=3), st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_stop_string_is_found_after_the_token_that_completes_it(texts, stops, with_special):
    tokens = [t for text in texts for t in TOKENIZER.encode(text, add_special_tokens=False)]
    if with_special:
        start = TOKENIZER.convert_tokens_to_ids("<|im_start|>")
        assert start in SPECIAL
        tokens = [t for token in tokens for t in (token, start)]
    watch = StopStrings(TOKENIZER, SPECIAL, stops)
    for length in range(1, len(tokens) + 1):
        text = TOKENIZER.decode(tokens[:length], skip_special_tokens=True)
        shown = any(s in text for s in stops)
        assert watch.ended(tokens[:length]) == shown
        if shown:
            break


def test_text_is_looked_at_only_after_tokens_that_show_a_last_character():
    tokenizer = Counting()
    watch = StopStrings(tokenizer, SPECIAL, ("</answer>", "数"))
    tokens = TOKENIZER.encode("It is said that nobody counts them. " * 3, add_special_tokens=False)
    assert not any(watch.ended(tokens[: i + 1]) for i in range(len(tokens)))
    assert tokenizer.calls == 0
    tokens += TOKENIZER.encode("3</answer>", add_special_tokens=False)
    assert watch.ended(tokens)
    assert tokenizer.calls == 1


@pytest.mark.parametrize("stop", ["a\n", "b "])
def test_a_stop_string_that_ends_in_a_space_is_looked_for_after_every_token(stop):
    tokenizer = Counting()
    watch = StopStrings(tokenizer, SPECIAL, (stop,))
    tokens = TOKENIZER.encode("xyzxyz", add_special_tokens=False)
    assert not any(watch.ended(tokens[: i + 1]) for i in range(1, len(tokens)))
    assert tokenizer.calls == len(tokens) - 1


def test_without_stop_strings_nothing_is_decoded():
    assert not StopStrings(None, SPECIAL, ()).ended([5])


def test_an_empty_stop_string_ends_in_every_token():
    assert StopStrings(TOKENIZER, SPECIAL, ("",)).ended(TOKENIZER.encode("x", add_special_tokens=False))
