"""A model's processor and its shape, without its weights: enough to make prompts and to estimate a run.

Builds the model without storage; knows no rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from mmgrpo.config.model import Model
from mmgrpo.policy.families.record import Family
from mmgrpo.policy.families.registry import Facts, family_of
from mmgrpo.policy.loading import load_model
from mmgrpo.policy.processors import limit_pixels, load_processor, set_template
from mmgrpo.policy.source import said_plainly


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What there is to know of a model before its weights are loaded."""

    model: nn.Module
    """Without storage, but for tiny twins."""
    processor: Any
    family: Family
    facts: Facts


def outline_of(settings: Model) -> Outline:
    """Load a processor, and a model without weights.

    Args:
        settings: The ``model`` section.

    Raises:
        ConfigError: Unknown family, or no such checkpoint.
        ProcessorError: The checkpoint has no chat template and the YAML names none.
    """
    if settings.name.startswith("tiny:"):
        loaded = load_model(settings.model_copy(update={"device": "cpu"}))
        facts = Facts(family=loaded.family, config=loaded.model.config)
        return Outline(model=loaded.model, processor=loaded.processor, family=loaded.family, facts=facts)
    processor = load_processor(settings)
    arguments: dict[str, Any] = {"trust_remote_code": settings.trust_remote_code}
    with said_plainly(settings):
        config = transformers.AutoConfig.from_pretrained(settings.name, revision=settings.revision, **arguments)
        family = family_of(config.model_type)
        loader = getattr(transformers, family.model_class)
        build = getattr(loader, "from_config", None) or loader._from_config
        with torch.device("meta"):
            model = build(config)
    set_template(processor, settings)
    limit_pixels(processor, family, settings)
    return Outline(model=model, processor=processor, family=family, facts=Facts(family=family, config=config))
