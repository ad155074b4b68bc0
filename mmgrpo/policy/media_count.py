"""Placeholders against encoder features: the check that runs before each forward.

A prompt that was cut, a picture that was dropped or placeholders that were expanded twice would train on the wrong
picture without any error. Knows counts only; what a placeholder is, and how many features a picture gives, the
family's record says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmgrpo.errors import ProcessorError, explain
from mmgrpo.policy.families.record import Family
from mmgrpo.policy.families.registry import Facts
from mmgrpo.types import Prompt


def check_media_count(family: Family, config: Any, prompts: Sequence[Prompt]) -> None:
    """Compare each prompt's placeholder tokens with the features its media will give, kind by kind.

    Args:
        family: The record.
        config: The model's config.
        prompts: About to be encoded.

    Raises:
        ProcessorError: The counts of one kind differ.
    """
    facts = Facts(family=family, config=config)
    for prompt in prompts:
        placeholders = facts.count_media_tokens(prompt.token_ids)
        features = family.count_features(prompt, config)
        for kind in sorted({*placeholders, *features}):
            expected, got = features.get(kind, 0), placeholders.get(kind, 0)
            if expected != got:
                raise ProcessorError(
                    explain(
                        "Placeholder tokens and encoder features do not match",
                        where=f"sample {prompt.sample.id}, {kind}",
                        expected=f"{expected} features, one placeholder each",
                        got=f"{got} placeholders",
                        fix="The prompt was cut inside a medium, its media were dropped, or placeholders were "
                        "expanded twice: give the processor's own token ids and tensors to the model.",
                    )
                )
