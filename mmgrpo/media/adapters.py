"""Adapters: who reads which medium.

One contract for every kind: a source goes in, a decoded array with its rate comes out, and ``media/inputs.py`` hands
that to the processor. Pictures, sounds and clips have an adapter each; a plug-in for another sensor has the same
contract and is asked first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mmgrpo.config.data import AudioLimits, Data, ImageLimits, VideoLimits
from mmgrpo.errors import MediaError, explain
from mmgrpo.media.audio import read_audio
from mmgrpo.media.color import Color
from mmgrpo.media.frames import ClipRules
from mmgrpo.media.image import MAX_PIXELS_DECODED, read_image, verify_image
from mmgrpo.media.shape import check_shape, fitted
from mmgrpo.media.sources import load
from mmgrpo.media.video import read_video
from mmgrpo.types import Decoded, Media, MediaKind

RATE_HZ = 16_000
"""Sampling rate of sounds where no processor says otherwise."""


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
