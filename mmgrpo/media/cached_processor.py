"""Media decoded and processed once per content: a memory around the adapters, and around the parts of a processor.

A part of a processor gets decoded objects, not files. So the memory notes which content stands behind each object that
it hands out, and looks the object up when the part is called; an object that it does not know is processed as always.
Where values are kept, and how content is told, is the caller's business.
"""

from __future__ import annotations

import copy
import hashlib
import json
import struct
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmgrpo.media.adapters import Adapters
from mmgrpo.media.image import image_lock
from mmgrpo.types import Decoded, Media

PARTS: Mapping[str, str] = {"image_processor": "image", "video_processor": "video", "feature_extractor": "audio"}
"""What transformers calls the parts of a processor that take media, and the kind that each takes."""
_ARGUMENTS = ("images", "videos", "audio", "raw_speech")


class _NoKeyError(Exception):
    """A media item's content cannot be told without decoding it."""


_UNREADABLE = (
    _NoKeyError, OSError, TypeError, ValueError, LookupError, AttributeError, EOFError, SyntaxError, ArithmeticError,
    RuntimeError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
"""What is raised where the content cannot be told: also by Pillow, of a damaged image that it reads only now."""
_MOST_PIXELS = 89_478_485
"""Larger images are refused where they are decoded, and so are not read here; as Pillow warns about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaCache:
    """Where values are kept, and how the content of a media item is told."""

    get: Callable[[str, Callable[[], Any]], Any]
    """Gives the value of a key, or makes it."""
    key: Callable[[Media], str | None]
    """Names a media item's content and all that changes how it is decoded; None: it cannot be told."""
    output: Callable[[dict[str, Any]], Any]
    """Makes what a part of a processor returns."""


class ContentIndex:
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


class CachedAdapters(Adapters):
    """Adapters that decode each content once."""

    def __init__(self, adapters: Adapters, memory: MediaCache, known: ContentIndex) -> None:
        """Stand before ``adapters``."""
        self._inner, self._memory, self._index = adapters, memory, known

    def decode(self, media: Media) -> Decoded:
        """Decode one media item, or find it.

        Args:
            media: Kind and source.

        Returns:
            The decoded media item. Its array is the caller's own: a reward that draws on it changes no other.

        Raises:
            MediaError: It cannot be read.
        """
        with image_lock(media.source):
            key = self._memory.key(media)
        if key is None:
            return self._inner.decode(media)
        found: Decoded = self._memory.get(f"{key}-decoded", lambda: self._inner.decode(media))
        if not _is_plain(found.data):  # a plug-in's own object: its parts may be shared, and it cannot be noted
            return replace(found, data=copy.deepcopy(found.data), name=media.name)
        own = replace(found, data=found.data.copy(), name=media.name)
        self._index.note(own.data, key)
        return own

    def verify(self, media: Media) -> None:
        """Check that one media item can be read to its end, without remembering it."""
        self._inner.verify(media)


def _is_plain(data: Any) -> bool:
    """Tell whether decoded data are of the contract: an array, or an image of Pillow."""
    return isinstance(data, np.ndarray) or hasattr(data, "getbands")


class CachedPart:
    """A part of a processor that works on each content once. Everything but the call is the part's own."""

    def __init__(self, part: Any, memory: MediaCache, known: ContentIndex, *, one_by_one: bool) -> None:
        """Stand before ``part``.

        Args:
            part: An image processor, video processor or feature extractor, its settings as they will stay.
            memory: Where its results are kept.
            known: The content of the objects it will get.
            one_by_one: Whether media processed alone and joined along the first axis are what they are together.
                Several media that are not are one content, as are those that come as a nested list.
        """
        self._part, self._memory, self._index, self._one_by_one = part, memory, known, one_by_one
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
            return self._memory.output(_joined([self._one(item, settings, args, kwargs, named) for item in media]))
        return self._memory.output(self._processed(media, places, settings, args, kwargs, named))

    def _one(self, item: Any, settings: list[str], args: Any, kwargs: Any, named: str | None) -> dict[str, Any]:
        return self._processed([item], [self._index.key(item)], settings, args, kwargs, named)

    def _processed(
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
            places = [self._content(item) for item in media]
            return None if not places or any(place is None for place in places) else places
        return None if media is None else self._index.key(media)


def _joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the results of single media behind one another."""
    whole: dict[str, Any] = {}
    for name in pieces[0]:
        values = [piece[name] for piece in pieces]
        whole[name] = torch.cat(values) if isinstance(values[0], torch.Tensor) else [x for v in values for x in v]
    return whole


def cache_parts(processor: Any, memory: MediaCache, known: ContentIndex, *, one_by_one: Iterable[str]) -> None:
    """Put the memory before every part of a processor that takes media.

    Args:
        processor: Is changed, and then can no longer be saved: give a copy.
        memory: Where results are kept.
        known: The content of the objects that the parts will get.
        one_by_one: Kinds of media (``image``) whose results may be joined.
    """
    kinds = set(one_by_one)
    for name, part in media_parts(processor).items():
        setattr(processor, name, CachedPart(part, memory, known, one_by_one=PARTS[name] in kinds))


def media_parts(processor: Any) -> Mapping[str, Any]:
    """Give the parts of a processor that take media, by name."""
    found = {name: getattr(processor, name, None) for name in PARTS}
    return {name: part for name, part in found.items() if part is not None}


def content_key(item: Media, fingerprint: str, *, by_name: bool = False) -> str | None:
    """Name what a decoded media item is made of.

    Args:
        item: Kind, source and rate.
        fingerprint: All settings that change how it is decoded.
        by_name: Whether its name counts, too: who decodes it may look at that.

    Returns:
        A hexadecimal key; None where the content cannot be told without decoding it, or the file is not there.

    Example:
        >>> a, b = Media(kind="image", source=b"1", name="a"), Media(kind="image", source=b"1", name="b")
        >>> content_key(a, "x") == content_key(b, "x"), content_key(a, "x") == content_key(a, "y")
        (True, False)
    """
    facts = (item.kind, item.rate, item.name if by_name else None)
    digest = hashlib.sha256(fingerprint.encode())
    try:
        digest.update(repr(facts).encode("utf-8", "surrogatepass") + _source(item.source))
    except _UNREADABLE:
        return None
    return digest.hexdigest()


def _source(source: Any) -> bytes:
    """Hash a source; what is of another type is another source, even where its bytes are the same."""
    if isinstance(source, Path):
        return _file(source)
    if isinstance(source, bytes | bytearray | memoryview):
        return _hashed("bytes", bytes(source))
    if isinstance(source, str):
        return _text(source)
    if isinstance(source, np.ndarray):
        if source.dtype.hasobject:  # its bytes are addresses, not content
            raise _NoKeyError
        return _hashed(f"array {source.shape} {source.dtype.str}", np.ascontiguousarray(source).tobytes())
    if isinstance(source, Mapping):
        pairs = (_hashed("key", str(key).encode()) + _source(source[key]) for key in sorted(source))
        return _hashed("mapping", b"".join(pairs))
    if isinstance(source, list | tuple):
        return _hashed("list", b"".join(_source(one) for one in source))
    if source is None or isinstance(source, int | float):
        return _hashed(type(source).__name__, repr(source).encode())
    if isinstance(source, Image.Image):
        return _image(source)
    raise _NoKeyError


def _file(path: Path) -> bytes:
    facts = path.stat()
    if not path.is_file():
        raise _NoKeyError
    return _hashed("file", repr((str(path.absolute()), facts.st_size, facts.st_mtime_ns)).encode())


def _text(source: str) -> bytes:
    """Hash an address that holds its content; any other text may name a file, which can change under it."""
    scheme = source[:6].lower()
    if scheme.startswith("data:"):
        return _hashed("text", source.encode("utf-8", "surrogatepass"))
    if scheme.startswith("file:"):
        raise _NoKeyError
    return _file(Path(source))


def _image(image: Image.Image) -> bytes:
    """Hash an image's pixels, and what else decides how they are seen: palette, transparency, orientation."""
    if image.width * image.height > _MOST_PIXELS or getattr(image, "n_frames", 1) != 1:
        raise _NoKeyError
    image.load()  # only then are the facts those of the pixels
    palette = None if image.palette is None else image.getpalette("RGBA")
    facts = (image.mode, image.size, palette, image.info.get("transparency"), sorted(image.getexif().items()))
    return _hashed(f"image {facts!r}", image.tobytes())


def _hashed(kind: str, content: bytes) -> bytes:
    digest = hashlib.sha256(kind.encode("utf-8", "surrogatepass") + b"\0")
    digest.update(content)
    return digest.digest()
