"""Adapters: who reads which media item.

One contract for every kind: a source goes in, a decoded array with its rate comes out, and ``media/inputs.py`` hands
that to the processor. Images, audio and videos have an adapter each. A plug-in for another sensor (a class in a Python
file, a module, or an installed entry point) has the same contract and is asked first; it may raise anything, and here
that becomes an error that names the plug-in and the item. A run has one instance of each.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

from mmgrpo.config.data import Data, MediaAdapter
from mmgrpo.errors import ConfigError, MediaError, explain
from mmgrpo.media.audio import AudioAdapter, longest_audio, sampling_rate
from mmgrpo.media.frames import VideoRules
from mmgrpo.media.image import MAX_PIXELS_DECODED, Color, ImageAdapter
from mmgrpo.media.video import VideoAdapter
from mmgrpo.plugins import build_object, load_object, plugin_errors
from mmgrpo.types import Decoded, Media, MediaKind

_KINDS = ("image", "audio", "video")


class Adapter(Protocol):
    """Reads the media of one kind, or those of one sensor as media of that kind."""

    kind: MediaKind
    """What it makes: ``image``, ``audio`` or ``video``."""

    def reads(self, media: Media) -> bool:
        """Tell, without opening anything, whether this media item is for this adapter."""
        ...

    def decode(self, media: Media) -> Decoded:
        """Read it.

        Raises:
            MediaError: It cannot be read.
        """
        ...

    def verify(self, media: Media) -> None:
        """Check that it can be read to its end, at the least cost; a plug-in may leave this method out.

        Raises:
            MediaError: It cannot be read.
        """
        ...


class Adapters:
    """All adapters of a run: the first that makes the kind and reads the media item is taken."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        """Keep ``adapters`` in the order in which they are asked."""
        self._adapters = tuple(adapters)

    def decode(self, media: Media) -> Decoded:
        """Decode one media item.

        Args:
            media: Kind and source.

        Returns:
            The decoded media item, of the same kind and under the same name.

        Raises:
            MediaError: It cannot be read; the message names it.
        """
        return self._of(media).decode(media)

    def verify(self, media: Media) -> None:
        """Check that one media item can be read to its end.

        Args:
            media: Kind and source.

        Raises:
            MediaError: It cannot be read; the message names it.
        """
        self._of(media).verify(media)

    def _of(self, media: Media) -> Adapter:
        for adapter in self._adapters:
            if adapter.kind == media.kind and adapter.reads(media):
                return adapter
        raise MediaError(
            explain(
                f"No adapter reads this {media.kind}",
                where=media.name,
                expected=", ".join(sorted({a.kind for a in self._adapters})),
            )
        )


def built_in(
    data: Data | None = None,
    *,
    processor: Any = None,
    background: Color | None = None,
    max_pixels_decoded: int = MAX_PIXELS_DECODED,
) -> list[Adapter]:
    """Make the adapters of images, audio and videos.

    Args:
        data: The YAML's ``data`` section, for its limits.
        processor: The loaded processor, for its sampling rate and the sizes of its patches.
        background: Colour under transparent pixels; default: ``data.background``.
        max_pixels_decoded: Larger images and frames are refused before decoding, in pixels.

    Returns:
        One adapter per kind.
    """
    data = data or Data()
    red, green, blue = background or data.background
    audio = data.audio.model_copy(update={"max_seconds": longest_audio(data.audio, processor)})
    return [
        ImageAdapter(data.image, background=(red, green, blue), max_pixels_decoded=max_pixels_decoded),
        AudioAdapter(audio, rate_hz=sampling_rate(processor)),
        VideoAdapter(VideoRules.of(data.video, processor, background=(red, green, blue))),
    ]


class GuardedAdapter:
    """A plug-in behind the contract: what it raises and what it returns are checked.

    A run has one instance, which all threads of ``data.prefetch`` share: it reads one item at a time, unless it has an
    attribute ``thread_safe`` that is true.
    """

    def __init__(self, adapter: Any, *, name: str) -> None:
        """Check the plug-in ``name``.

        Raises:
            ConfigError: It has no kind, no ``reads`` or no ``decode``.
        """
        missing = [part for part in ("reads", "decode") if not callable(getattr(adapter, part, None))]
        if getattr(adapter, "kind", None) not in _KINDS or missing:
            raise ConfigError(
                explain(
                    f"{name} is not a media adapter",
                    where="data.adapters",
                    expected=f"an attribute kind ({', '.join(_KINDS)}) and the methods reads(media), decode(media)",
                    got=f"kind {getattr(adapter, 'kind', None)!r}" + (f", without {missing[0]}" if missing else ""),
                )
            )
        self._adapter, self._name = adapter, name
        self._turn = nullcontext() if getattr(adapter, "thread_safe", False) is True else threading.RLock()
        self.kind: MediaKind = adapter.kind

    @property
    def source(self) -> bytes:
        """The file that the plug-in is written in: one that is edited makes other media. Empty where there is none."""
        target = self._adapter if isinstance(self._adapter, type) else type(self._adapter)
        try:
            return Path(inspect.getsourcefile(target) or "").read_bytes()
        except (OSError, TypeError):
            return b""

    def reads(self, media: Media) -> bool:
        """Ask the plug-in whether the media item is for it."""
        return bool(self._call(self._adapter.reads, media))

    def decode(self, media: Media) -> Decoded:
        """Let the plug-in read the media item.

        Raises:
            MediaError: It failed, or made something else than it promised.
        """
        decoded = self._call(self._adapter.decode, media)
        if isinstance(decoded, Decoded) and decoded.kind == media.kind:
            return decoded
        kind = f" of kind {decoded.kind}" if isinstance(decoded, Decoded) else ""
        raise MediaError(
            explain(
                f"The adapter {self._name} did not make what it promised",
                where=media.name,
                expected=f"mmgrpo.types.Decoded of kind {media.kind}",
                got=f"{type(decoded).__name__}{kind}",
            )
        )

    def verify(self, media: Media) -> None:
        """Let the plug-in check the media item; one without a way of its own decodes it.

        Raises:
            MediaError: It failed.
        """
        check = getattr(self._adapter, "verify", None)
        if check is None:
            self.decode(media)
        else:
            self._call(check, media)

    def _call(self, call: Callable[[Media], Any], media: Media) -> Any:
        fix = "Correct the adapter, or replace the file."
        failed = plugin_errors(f"The adapter {self._name} failed", where=media.name, fix=fix, error=MediaError)
        with failed, self._turn:
            return call(media)


def load_adapters(wanted: Sequence[MediaAdapter], *, base: Path) -> list[GuardedAdapter]:
    """Load the plug-ins of ``data.adapters``.

    Args:
        wanted: As written in the YAML.
        base: Folder of the YAML, where relative paths start.

    Returns:
        One adapter each, in the same order.

    Raises:
        ConfigError: There is no such file or name, it cannot be imported or built, or it is no adapter.
    """
    return [
        GuardedAdapter(_built(one, base, f"data.adapters.{place}"), name=one.fn) for place, one in enumerate(wanted)
    ]


def _built(wanted: MediaAdapter, base: Path, where: str) -> Any:
    target = load_object(wanted.fn, kind="adapters", folder=base, where=where)
    return build_object(target, wanted.args, spec=wanted.fn, where=where)


def open_adapters(
    data: Data, *, base: Path, processor: Any = None, plugins: Sequence[Adapter] | None = None
) -> Adapters:
    """Put the adapters of a run together: plug-ins first, then those of images, audio and videos.

    Args:
        data: The YAML's ``data`` section.
        base: Folder of the YAML.
        processor: The loaded processor, for its rates and sizes; None where only verifying is wanted.
        plugins: Those of ``data.adapters``, where they are loaded already; None: load them.

    Returns:
        All adapters.

    Raises:
        ConfigError: A plug-in cannot be loaded.
    """
    loaded = load_adapters(data.adapters, base=base) if plugins is None else plugins
    return Adapters([*loaded, *built_in(data, processor=processor)])
