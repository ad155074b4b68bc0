"""How rows become prompts in a run: the processor with the limits of the YAML, one for each thread, and the cache.

Knows the configuration and loaded processors; no rows and no loop.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mmgrpo import media
from mmgrpo.config.schema import Config
from mmgrpo.contracts import FamilyInfo
from mmgrpo.data.cache import ContentCache
from mmgrpo.data.content import key_of
from mmgrpo.data.encoders import Encoders
from mmgrpo.data.stored import FORMAT
from mmgrpo.errors import ConfigError, explain
from mmgrpo.media.limits import set_clip_limits
from mmgrpo.media.plugins import load_adapters, open_adapters
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.media.remembered import Known, Memory, RememberedAdapters, parts_of, remember
from mmgrpo.policy.model.policy import Policy
from mmgrpo.types import Prompt, Sample

Encode = Callable[[Sample, int], Prompt]
_READERS = ("transformers", "torch", "torchvision", "numpy", "pillow", "av", "soundfile", "torchaudio")
"""Packages whose release may change what a medium is decoded or processed to."""


def open_processor(
    config: Config, processor: Any, facts: FamilyInfo, *, base: Path, memory: Memory | None = None
) -> PromptBuilder:
    """Tie a processor to the limits of the YAML.

    Args:
        config: Limits, template arguments and adapters.
        processor: A loaded processor; the limits of clips are written into it. With a memory a copy of it is used.
        facts: Of its family.
        base: Folder that adapters are looked for in.
        memory: Keeps media between uses; None: each is decoded and processed at each use.
    """
    set_clip_limits(processor, config.data.video)
    adapters = open_adapters(config.data, base=base, processor=processor)
    if memory is not None:
        known, processor = Known(), copy.deepcopy(processor)
        adapters = RememberedAdapters(adapters, memory, known)
        remember(processor, memory, known, one_by_one=facts.separable_kinds)
    return PromptBuilder(
        processor,
        facts=facts,
        chat_template_kwargs=config.rollout.chat_template_kwargs,
        max_prompt_tokens=config.data.max_prompt_tokens,
        adapters=adapters,
        clip_sound=config.data.video.sound,
    )


def open_memory(config: Config, processor: Any, *, base: Path) -> Memory | None:
    """Open the cache of media that all makers of prompts of a run share.

    Args:
        config: Size and folder of the cache, limits and adapters.
        processor: The loaded processor; the limits of clips are written into it.
        base: Folder that relative paths start from.

    Returns:
        The memory; None where the cache is off.

    Raises:
        ConfigError: The folder cannot be made.
    """
    asked = config.cache
    if not asked.media_bytes and asked.folder is None:
        return None
    from transformers.feature_extraction_utils import BatchFeature
    from transformers.video_utils import VideoMetadata

    set_clip_limits(processor, config.data.video)
    folder = None if asked.folder is None else _opened(base / Path(asked.folder).expanduser())
    kept = ContentCache(max_bytes=asked.media_bytes, folder=folder, plain=(VideoMetadata,))
    settings = fingerprint(config, processor, base=base)
    by_name = bool(config.data.adapters)  # a plug-in may choose by the ending, or look beside the file
    return Memory(get=kept.get, key=partial(key_of, fingerprint=settings, by_name=by_name), output=BatchFeature)


def _opened(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "Set cache.folder to a folder that can be made, or leave it out."
        raise ConfigError(
            explain(
                "The folder of the media cache cannot be made",
                where=f"cache.folder: {folder}",
                got=str(error),
                fix=fix,
            )
        ) from error
    return folder


def open_encoder(
    config: Config, policy: Policy, processor: PromptBuilder, *, base: Path, memory: Memory | None = None
) -> Encode:
    """Make prompts with a processor for each thread that makes them ahead.

    Args:
        config: Threads, and as for :func:`open_processor`.
        policy: Its processor is copied for each thread.
        processor: Makes the prompts where there are no threads.
        base: As there.
        memory: As there; shared by all threads.
    """
    if not config.data.prefetch:
        return lambda sample, occurrence: processor.encode(sample, occurrence=occurrence)
    make = partial(copied_maker, config, policy.processor, policy.family_info, base=base, memory=memory)
    return Encoders([make() for _ in range(config.data.prefetch)])


def copied_maker(
    config: Config, processor: Any, facts: FamilyInfo, *, base: Path, memory: Memory | None = None
) -> Encode:
    """Make prompts with a copy of a processor, which no other thread uses.

    Args:
        config: As for :func:`open_processor`.
        processor: Is copied.
        facts: Of its family.
        base: As there.
        memory: As there.
    """
    mine = processor if memory is not None else copy.deepcopy(processor)  # with a memory it is copied there
    own = open_processor(config, mine, facts, base=base, memory=memory)
    return lambda sample, occurrence: own.encode(sample, occurrence=occurrence)


def fingerprint(config: Config, processor: Any, *, base: Path) -> str:
    """Write down all settings that change how a medium is decoded or processed, for the key of a cache.

    Args:
        config: Limits and adapters.
        processor: The loaded processor, its settings as they stand.
        base: Folder that adapters are looked for in.
    """
    data = config.data
    plugged = load_adapters(data.adapters, base=base)
    settings = {
        "parts": {name: f"{type(part).__qualname__} {part}" for name, part in parts_of(processor).items()},
        "limits": [getattr(data, name).model_dump() for name in ("image", "audio", "video")],
        "background": data.background,
        "adapters": [adapter.model_dump() for adapter in data.adapters],
        "plugins": [hashlib.sha256(one.source).hexdigest() for one in plugged],
        "versions": {name: _version(name) for name in _READERS},
        "readers": _own_code(),
        "format": FORMAT,
    }
    return json.dumps(settings, sort_keys=True, default=str)


@cache
def _own_code() -> str:
    """Hash the files that read media here, since a checkout changes without a new version."""
    digest = hashlib.sha256()
    for file in sorted(Path(media.__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
