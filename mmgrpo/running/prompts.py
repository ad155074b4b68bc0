"""How rows become prompts in a run: the processor with the limits of the YAML, one for each thread, and the cache.

Knows the configuration and loaded processors; no rows and no loop.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mmgrpo.config.schema import Config
from mmgrpo.contracts import FamilyFacts
from mmgrpo.data.cache import PromptCache
from mmgrpo.data.encoders import Encoders
from mmgrpo.media.limits import set_clip_limits
from mmgrpo.media.plugins import open_adapters
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.policy import Policy
from mmgrpo.types import Prompt, Sample

Encode = Callable[[Sample, int], Prompt]


def open_processor(config: Config, processor: Any, facts: FamilyFacts, *, base: Path) -> PromptBuilder:
    """Tie a processor to the limits of the YAML.

    Args:
        config: Limits, template arguments and adapters.
        processor: A loaded processor; the limits of clips are written into it.
        facts: Of its family.
        base: Folder that adapters are looked for in.
    """
    set_clip_limits(processor, config.data.video)
    return PromptBuilder(
        processor,
        facts=facts,
        chat_template_kwargs=config.rollout.chat_template_kwargs,
        max_prompt_tokens=config.data.max_prompt_tokens,
        adapters=open_adapters(config.data, base=base, processor=processor),
        clip_sound=config.data.video.sound,
    )


def open_encoder(config: Config, policy: Policy, encode: Encode, *, base: Path) -> Encode:
    """Make training prompts with a processor for each thread that makes them ahead, through the cache if it is on.

    Args:
        config: Threads and cache.
        policy: Its processor is copied for each thread.
        encode: Makes prompts where there are no threads.
        base: Folder that relative paths start from.
    """
    threads, cache = config.data.prefetch, config.cache
    if threads:
        encode = Encoders([copied_maker(config, policy.processor, policy.facts, base=base) for _ in range(threads)])
    if not cache.prompts_bytes and cache.folder is None:
        return encode
    folder = None if cache.folder is None else base / Path(cache.folder).expanduser()
    settings = fingerprint(config, policy.processor)
    return PromptCache(encode, fingerprint=settings, max_bytes=cache.prompts_bytes, folder=folder)


def copied_maker(config: Config, processor: Any, facts: FamilyFacts, *, base: Path) -> Encode:
    """Make prompts with a copy of a processor, which no other thread uses.

    Args:
        config: As for :func:`open_processor`.
        processor: Is copied.
        facts: Of its family.
        base: As there.
    """
    own = open_processor(config, copy.deepcopy(processor), facts, base=base)
    return lambda sample, occurrence: own.encode(sample, occurrence=occurrence)


def fingerprint(config: Config, processor: Any) -> str:
    """Write down all settings that change what a processor gives, for the key of a cache.

    Args:
        config: Model, limits, template arguments and adapters.
        processor: The loaded processor, its settings as they stand.
    """
    data, model = config.data, config.model
    tokenizer = getattr(processor, "tokenizer", processor)
    settings = {
        "model": [model.name, model.revision, model.sizes],
        "processor": repr(processor),
        "template": getattr(processor, "chat_template", None) or tokenizer.chat_template,
        "template_arguments": config.rollout.chat_template_kwargs,
        "media": [getattr(data, name).model_dump() for name in ("image", "audio", "video")],
        "adapters": [adapter.model_dump() for adapter in data.adapters],
        "background": data.background,
        "max_prompt_tokens": data.max_prompt_tokens,
        "versions": [version("mmgrpo"), version("transformers")],
    }
    return json.dumps(settings, sort_keys=True, default=str)
