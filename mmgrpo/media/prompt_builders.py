"""How rows become prompts in a run: builders with the limits of the YAML, one for each thread, and the media cache.

Knows the configuration and loaded processors; no rows and no loop.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mmgrpo import media
from mmgrpo.config.schema import Config
from mmgrpo.contracts import FamilyInfo
from mmgrpo.errors import ConfigError, explain
from mmgrpo.media.adapters import GuardedAdapter, load_adapters, open_adapters
from mmgrpo.media.cache import FORMAT, ContentCache
from mmgrpo.media.cached_processor import (
    CachedAdapters,
    ContentIndex,
    MediaCache,
    cache_parts,
    content_key,
    media_parts,
)
from mmgrpo.media.frames import set_video_limits
from mmgrpo.media.prompts import PromptBuilder, PromptBuilderPool

_READERS = ("transformers", "torch", "torchvision", "numpy", "pillow", "av", "soundfile", "torchaudio")
"""Packages whose release may change what a media item is decoded or processed to."""


class PromptBuilders:
    """Makes the prompt builders of a run, which share its adapters and its media cache."""

    def __init__(
        self,
        config: Config,
        processor: Any,
        family: FamilyInfo,
        *,
        base: Path,
        plugins: Sequence[GuardedAdapter] | None = None,
    ) -> None:
        """Write the limits of videos into the processor, and open the cache where there is one.

        Args:
            config: Limits, template arguments, adapters, and size and folder of the cache.
            processor: A loaded processor.
            family: What the family reads.
            base: Folder that relative paths start from.
            plugins: Those of ``data.adapters``, where they are loaded already; None: load them.

        Raises:
            ConfigError: A plug-in cannot be loaded, or the folder of the cache cannot be made.
        """
        set_video_limits(processor, config.data.video)
        self._config, self._processor, self._family, self._base = config, processor, family, base
        self._plugins = load_adapters(config.data.adapters, base=base) if plugins is None else tuple(plugins)
        self.media_cache = open_media_cache(config, processor, base=base, plugins=self._plugins)
        """None where it is off: each media item is decoded and processed at each use."""

    def builder(self, *, copied: bool = False) -> PromptBuilder:
        """Make a prompt builder.

        Args:
            copied: Give it a processor of its own, which no other thread uses. With a cache it always has one.
        """
        config, media_cache, family = self._config, self.media_cache, self._family
        cached = media_cache is not None
        processor = copy.deepcopy(self._processor) if copied or cached else self._processor
        adapters = open_adapters(config.data, base=self._base, processor=processor, plugins=self._plugins)
        if media_cache is not None:
            index = ContentIndex()
            adapters = CachedAdapters(adapters, media_cache, index)
            cache_parts(processor, media_cache, index, one_by_one=family.separable_kinds)
        return PromptBuilder(
            processor,
            family=family,
            chat_template_kwargs=config.rollout.chat_template_kwargs,
            max_prompt_tokens=config.data.max_prompt_tokens,
            adapters=adapters,
            audio_tracks=config.data.video.sound,
        )

    def pool(self, threads: int) -> PromptBuilderPool:
        """Make a builder for each of so many threads, at least one."""
        return PromptBuilderPool([self.builder(copied=True).build_prompt for _ in range(max(1, threads))])


def open_media_cache(
    config: Config, processor: Any, *, base: Path, plugins: Sequence[GuardedAdapter] = ()
) -> MediaCache | None:
    """Open the media cache that all prompt builders of a run share.

    Args:
        config: Size and folder of the cache, limits and adapters.
        processor: The loaded processor, its settings as they will stay.
        base: Folder that relative paths start from.
        plugins: Those of ``data.adapters``.

    Returns:
        The cache; None where it is off.

    Raises:
        ConfigError: The folder cannot be made.
    """
    settings = config.cache
    if not settings.media_bytes and settings.folder is None:
        return None
    from transformers.feature_extraction_utils import BatchFeature
    from transformers.video_utils import VideoMetadata

    folder = None if settings.folder is None else _opened(base / Path(settings.folder).expanduser())
    store = ContentCache(max_bytes=settings.media_bytes, folder=folder, plain=(VideoMetadata,))
    key = partial(
        content_key,
        fingerprint=fingerprint(config, processor, plugins),
        by_name=bool(plugins),  # a plug-in may choose by the ending, or look beside the file
    )
    return MediaCache(get=store.get, key=key, output=BatchFeature)


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


def fingerprint(config: Config, processor: Any, plugins: Sequence[GuardedAdapter] = ()) -> str:
    """Write down all settings that change how a media item is decoded or processed, for the key of a cache.

    Args:
        config: Limits and adapters.
        processor: The loaded processor, its settings as they stand.
        plugins: Those of ``data.adapters``.
    """
    data = config.data
    settings = {
        "parts": {name: f"{type(part).__qualname__} {part}" for name, part in media_parts(processor).items()},
        "limits": [getattr(data, name).model_dump() for name in ("image", "audio", "video")],
        "background": data.background,
        "adapters": [adapter.model_dump() for adapter in data.adapters],
        "plugins": [hashlib.sha256(one.source).hexdigest() for one in plugins],
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
