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

from mmgrpo.config.data import AudioLimits, Data, ImageLimits, MediaAdapter, VideoLimits
from mmgrpo.errors import ConfigError, MediaError, explain
from mmgrpo.media.audio import read_audio
from mmgrpo.media.color import Color
from mmgrpo.media.frames import ClipRules
from mmgrpo.media.image import MAX_PIXELS_DECODED, read_image, verify_image
from mmgrpo.media.shape import check_shape, fitted
from mmgrpo.media.sources import load
from mmgrpo.media.video import read_video
from mmgrpo.plugins import build_object, load_object, plugin_errors
from mmgrpo.types import Decoded, Media, MediaKind

RATE_HZ = 16_000
"""Sampling rate of sounds where no processor says otherwise."""
_KINDS = ("image", "audio", "video")


class Adapter(Protocol):
    """Reads the media of one kind, or those of one sensor as media of that kind."""

    kind: MediaKind
    """What it makes: ``image``, ``audio`` or ``video``."""

    def reads(self, media: Media) -> bool:
        """Tell, without opening anything, whether this medium is for this adapter."""
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
    """All adapters of a run: the first that makes the kind and reads the medium is taken."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        """Keep ``adapters`` in the order in which they are asked."""
        self._adapters = tuple(adapters)

    def decode(self, media: Media) -> Decoded:
        """Decode one medium.

        Args:
            media: Kind and source.

        Returns:
            The decoded medium, of the same kind and under the same name.

        Raises:
            MediaError: It cannot be read; the message names it.
        """
        return self._of(media).decode(media)

    def verify(self, media: Media) -> None:
        """Check that one medium can be read to its end.

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


class ImageAdapter:
    """Pictures, of any format that Pillow reads safely."""

    kind: MediaKind = "image"

    def __init__(
        self,
        limits: ImageLimits | None = None,
        *,
        background: Color = (255, 255, 255),
        max_pixels_decoded: int = MAX_PIXELS_DECODED,
    ) -> None:
        """Take ``limits`` of shape, a colour for transparent pixels, and a size past which nothing is decoded."""
        self._limits, self._background, self._largest = limits or ImageLimits(), background, max_pixels_decoded

    def reads(self, media: Media) -> bool:
        """Read every picture."""
        return True

    def decode(self, media: Media) -> Decoded:
        """Decode one picture."""
        name = media.name or "a picture"
        image = read_image(
            load(media.source, name=name),
            name=name,
            background=self._background,
            max_pixels_decoded=self._largest,
        )
        image = fitted(image, self._limits, background=self._background, name=name)
        return Decoded(kind="image", data=image, name=media.name)

    def verify(self, media: Media) -> None:
        """Check one picture."""
        name = media.name or "a picture"
        size = verify_image(load(media.source, name=name), name=name, max_pixels_decoded=self._largest)
        if size is None:
            self.decode(media)
        else:
            check_shape(*size, self._limits, name=name)


class AudioAdapter:
    """Sounds, mono and at one rate."""

    kind: MediaKind = "audio"

    def __init__(self, limits: AudioLimits | None = None, *, rate_hz: int = RATE_HZ) -> None:
        """Take ``limits`` of length and the processor's rate."""
        self._limits, self._rate = limits or AudioLimits(), rate_hz

    def reads(self, media: Media) -> bool:
        """Read every sound."""
        return True

    def decode(self, media: Media) -> Decoded:
        """Decode one sound."""
        name = media.name or "a sound"
        samples = read_audio(media.source, name=name, rate=media.rate, rate_hz=self._rate, limits=self._limits)
        return Decoded(kind="audio", data=samples, rate=float(self._rate), name=media.name)

    def verify(self, media: Media) -> None:
        """Check one sound; sounds are short, so this decodes it."""
        self.decode(media)


class VideoAdapter:
    """Clips: files, animations, lists of frames, arrays."""

    kind: MediaKind = "video"

    def __init__(self, rules: ClipRules | None = None) -> None:
        """Take the rules by which frames are chosen and sized."""
        self._rules = rules or ClipRules(limits=VideoLimits())

    def reads(self, media: Media) -> bool:
        """Read every clip."""
        return True

    def decode(self, media: Media) -> Decoded:
        """Decode one clip."""
        name = media.name or "a clip"
        clip = read_video(media.source, name=name, rate=media.rate, rules=self._rules)
        return Decoded(kind="video", data=clip.frames, rate=clip.rate, times=clip.times, name=media.name)

    def verify(self, media: Media) -> None:
        """Check one clip: read the frames that a run would read."""
        self.decode(media)


def built_in(
    data: Data | None = None,
    *,
    processor: Any = None,
    background: Color | None = None,
    max_pixels_decoded: int = MAX_PIXELS_DECODED,
) -> list[Adapter]:
    """Make the adapters of pictures, sounds and clips.

    Args:
        data: The YAML's ``data`` section, for its limits.
        processor: The loaded processor, for its sampling rate and the sizes of its patches.
        background: Colour under transparent pixels; default: ``data.background``.
        max_pixels_decoded: Larger pictures and frames are refused before decoding, in pixels.

    Returns:
        One adapter per kind.
    """
    data = data or Data()
    red, green, blue = background or data.background
    audio = data.audio.model_copy(update={"max_seconds": longest_sound(data.audio, processor)})
    return [
        ImageAdapter(data.image, background=(red, green, blue), max_pixels_decoded=max_pixels_decoded),
        AudioAdapter(audio, rate_hz=sampling_rate(processor)),
        VideoAdapter(ClipRules.of(data.video, processor, background=(red, green, blue))),
    ]


def longest_sound(limits: AudioLimits, processor: Any) -> float | None:
    """Find the longest sound that reaches the model whole, in seconds; feature extractors cut without a word.

    Args:
        limits: The YAML's.
        processor: A loaded processor, or None.

    Example:
        >>> longest_sound(AudioLimits(max_seconds=10), None)
        10.0
    """
    window = getattr(getattr(processor, "feature_extractor", None), "n_samples", None)
    known = [limits.max_seconds, window and window / sampling_rate(processor)]
    return min((seconds for seconds in known if seconds), default=None)


def sampling_rate(processor: Any) -> int:
    """Find the sampling rate that a processor takes, in Hz.

    Args:
        processor: A loaded processor, or None.

    Example:
        >>> sampling_rate(None)
        16000
    """
    extractor = getattr(processor, "feature_extractor", None)
    return int(getattr(extractor, "sampling_rate", None) or RATE_HZ)


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
        """Ask the plug-in whether the medium is for it."""
        return bool(self._call(self._adapter.reads, media))

    def decode(self, media: Media) -> Decoded:
        """Let the plug-in read the medium.

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
        """Let the plug-in check the medium; one without a way of its own decodes it.

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
