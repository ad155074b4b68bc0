"""Media decoded and processed once per content: a memory around the adapters, and around the parts of a processor.

A part of a processor gets decoded objects, not files. So the memory notes which content stands behind each object that
it hands out, and looks the object up when the part is called; an object that it does not know is processed as always.
Where values are kept, and how content is told, is the caller's business.
"""

from __future__ import annotations

import copy
import hashlib
import json
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mmgrpo.media.adapters import Adapters
from mmgrpo.media.image import held
from mmgrpo.types import Decoded, Media

PARTS: Mapping[str, str] = {"image_processor": "image", "video_processor": "video", "feature_extractor": "audio"}
"""What transformers calls the parts of a processor that take media, and the kind that each takes."""
_ARGUMENTS = ("images", "videos", "audio", "raw_speech")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Where values are kept, and how the content of a medium is told."""

    get: Callable[[str, Callable[[], Any]], Any]
    """Gives the value of a key, or makes it."""
    key: Callable[[Media], str | None]
    """Names a medium's content and all that changes how it is decoded; None: it cannot be told."""
    output: Callable[[dict[str, Any]], Any]
    """Makes what a part of a processor returns."""


class Known:
    """Which content stands behind a decoded object. One thread at a time."""

    def __init__(self) -> None:
        """Know nothing."""
        self._keys: dict[int, tuple[Any, str]] = {}

    def note(self, data: Any, key: str) -> None:
        """Note the content of an object, for as long as it lives."""
        place = id(data)
        self._keys[place] = (weakref.ref(data, lambda _: self._keys.pop(place, None)), key)

    def key(self, data: Any) -> str | None:
        """Give the content of an object; None: it is not known."""
        found = self._keys.get(id(data))
        return found[1] if found is not None and found[0]() is data else None


class RememberedAdapters(Adapters):
    """Adapters that decode each content once."""

    def __init__(self, adapters: Adapters, memory: Memory, known: Known) -> None:
        """Stand before ``adapters``."""
        self._inner, self._memory, self._known = adapters, memory, known

    def decode(self, media: Media) -> Decoded:
        """Decode one medium, or find it.

        Args:
            media: Kind and source.

        Returns:
            The decoded medium. Its array is the caller's own: a reward that draws on it changes no other.

        Raises:
            MediaError: It cannot be read.
        """
        with held(media.source):
            key = self._memory.key(media)
        if key is None:
            return self._inner.decode(media)
        found: Decoded = self._memory.get(f"{key}-decoded", lambda: self._inner.decode(media))
        if not _is_plain(found.data):  # a plug-in's own object: its parts may be shared, and it cannot be noted
            return replace(found, data=copy.deepcopy(found.data), name=media.name)
        own = replace(found, data=found.data.copy(), name=media.name)
        self._known.note(own.data, key)
        return own

    def verify(self, media: Media) -> None:
        """Check that one medium can be read to its end, without remembering it."""
        self._inner.verify(media)


def _is_plain(data: Any) -> bool:
    """Tell whether decoded data are of the contract: an array, or a picture of Pillow."""
    return isinstance(data, np.ndarray) or hasattr(data, "getbands")


class RememberedPart:
    """A part of a processor that works on each content once. Everything but the call is the part's own."""

    def __init__(self, part: Any, memory: Memory, known: Known, *, one_by_one: bool) -> None:
        """Stand before ``part``.

        Args:
            part: An image processor, video processor or feature extractor, its settings as they will stay.
            memory: Where its results are kept.
            known: The content of the objects it will get.
            one_by_one: Whether media processed alone and joined along the first axis are what they are together.
                Several media that are not are one content, as are those that come as a nested list.
        """
        self._part, self._memory, self._known, self._one_by_one = part, memory, known, one_by_one
        self._settings = f"{type(part).__qualname__} {part.to_json_string()}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_part":  # a copy asks before there is one
            raise AttributeError(name)
        return getattr(self._part, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Process media, or find them processed; arguments as the part takes them."""
        named = next((name for name in _ARGUMENTS if name in kwargs), None)
        media = args[0] if args else kwargs.get(named or "")
        settings = [
            self._settings,
            repr(args[1:]),
            repr(sorted((k, repr(v)) for k, v in kwargs.items() if k != named)),
        ]
        places = self._content(media)
        if places is None:
            return self._part(*args, **kwargs)
        if self._one_by_one and isinstance(media, list) and len(media) > 1:
            return self._memory.output(_joined([self._one(medium, settings, args, kwargs, named) for medium in media]))
        return self._memory.output(self._found(media, places, settings, args, kwargs, named))

    def _one(self, medium: Any, settings: list[str], args: Any, kwargs: Any, named: str | None) -> dict[str, Any]:
        return self._found([medium], [self._known.key(medium)], settings, args, kwargs, named)

    def _found(
        self, media: Any, places: Any, settings: list[str], args: Any, kwargs: Any, named: str | None
    ) -> dict[str, Any]:
        key = hashlib.sha256(json.dumps([settings, places]).encode()).hexdigest()

        def make() -> dict[str, Any]:
            if args:
                return dict(self._part(media, *args[1:], **kwargs))
            return dict(self._part(**{**kwargs, named or "": media}))

        return dict(self._memory.get(f"{key}-processed", make))

    def _content(self, media: Any) -> Any:
        """Write the content of nested media in their nesting; None: one is not known."""
        if isinstance(media, list | tuple):
            places = [self._content(medium) for medium in media]
            return None if not places or any(place is None for place in places) else places
        return None if media is None else self._known.key(media)


def _joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the results of single media behind one another."""
    whole: dict[str, Any] = {}
    for name in pieces[0]:
        values = [piece[name] for piece in pieces]
        whole[name] = torch.cat(values) if isinstance(values[0], torch.Tensor) else [x for v in values for x in v]
    return whole


def remember(processor: Any, memory: Memory, known: Known, *, one_by_one: Iterable[str]) -> None:
    """Put the memory before every part of a processor that takes media.

    Args:
        processor: Is changed, and then can no longer be saved: give a copy.
        memory: Where results are kept.
        known: The content of the objects that the parts will get.
        one_by_one: Kinds of media (``image``) whose results may be joined.
    """
    kinds = set(one_by_one)
    for name, part in parts_of(processor).items():
        setattr(processor, name, RememberedPart(part, memory, known, one_by_one=PARTS[name] in kinds))


def parts_of(processor: Any) -> Mapping[str, Any]:
    """Give the parts of a processor that take media, by name."""
    found = {name: getattr(processor, name, None) for name in PARTS}
    return {name: part for name, part in found.items() if part is not None}
