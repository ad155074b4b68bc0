"""Decoded media as the processor takes them: the last step of the contract, one argument per kind.

Knows the arguments that transformers' processors share, and no model family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.errors import ProcessorError, explain
from mmgrpo.types import Decoded

_TICKS = 1_000_000
"""Clips are described on a clock of microseconds, so that frames of any rate keep their true times."""


def processor_inputs(media: Sequence[Decoded], processor: Any, *, counts_images: bool = False) -> dict[str, Any]:
    """Make the processor's media arguments.

    Args:
        media: All media of a prompt, in order.
        processor: The loaded processor.
        counts_images: Whether it treats pictures by how many a prompt has, and must be told which are one prompt's.

    Returns:
        ``images``, ``audio`` and ``videos`` with what goes with them; empty for a prompt without media.

    Raises:
        ProcessorError: Clips of different rates, for a processor that takes one rate.

    Example:
        >>> processor_inputs([], None)
        {}
    """
    inputs: dict[str, Any] = {}
    images = [medium.data for medium in media if medium.kind == "image"]
    sounds = [medium for medium in media if medium.kind == "audio"]
    clips = [medium for medium in media if medium.kind == "video"]
    if images:
        inputs["images"] = [images] if counts_images else images
    if sounds:
        inputs["audio"] = [sound.data for sound in sounds]
        inputs["sampling_rate"] = int(sounds[0].rate or 0)
    if clips:
        inputs |= _clip_inputs(clips, processor)
    return inputs


def _clip_inputs(clips: Sequence[Decoded], processor: Any) -> dict[str, Any]:
    """Hand frames over as they are: they were chosen here, so the processor must not choose again."""
    settings: dict[str, Any] = {
        "video_metadata": [metadata_of(clip) for clip in clips],
        "do_sample_frames": False,
    }
    video = getattr(processor, "video_processor", None)
    of_the_class = _settings_of_the_class(processor)
    if hasattr(video, "cap_pixels_per_frame"):
        settings["cap_pixels_per_frame"] = False  # sizes were limited here, and are saved with the processor
    if "size" in of_the_class and getattr(video, "size", None) is not None:
        sizes = dict(video.size)
        settings["size"] = {name: value for name, value in sizes.items() if value}  # else a constant would win
    if not of_the_class.get("return_metadata"):
        settings["fps"] = _one_rate(clips, processor)
    return {"videos": [clip.data for clip in clips], "videos_kwargs": settings}


def _settings_of_the_class(processor: Any) -> Mapping[str, Any]:
    """Give what the class of a processor hands to its video processor, whatever that was loaded with.

    Up to transformers 5.19 it stands among the defaults of the class's keyword arguments.
    """
    older = getattr(getattr(processor, "valid_processor_kwargs", None), "_defaults", {})
    return getattr(processor, "videos_kwargs", None) or older.get("videos_kwargs", {})


def _one_rate(clips: Sequence[Decoded], processor: Any) -> float:
    """Give the rate of all clips, for a processor that takes no other word on time."""
    rates = sorted({clip.rate or 0.0 for clip in clips})
    if len(rates) == 1:
        return rates[0]
    raise ProcessorError(
        explain(
            f"{type(processor).__name__} takes one frame rate for all clips of a prompt",
            where=", ".join(clip.name for clip in clips),
            got=", ".join(f"{rate:g}" for rate in rates) + " frames per second",
            fix="Give one clip per row, or clips of one length.",
        )
    )


def metadata_of(clip: Decoded) -> Mapping[str, Any]:
    """Describe a clip on a clock of microseconds: its length, and when each frame is shown.

    Args:
        clip: A decoded clip.

    Returns:
        What transformers calls video metadata: frame numbers over ``fps`` are seconds, and the number of frames over
        ``total_num_frames`` times ``fps`` is the rate.

    Example:
        >>> import numpy as np
        >>> two = Decoded(kind="video", data=np.zeros((2, 4, 6, 3), np.uint8), rate=0.5, times=(0.0, 1.5))
        >>> metadata_of(two)["frames_indices"], metadata_of(two)["total_num_frames"]
        ([0, 1500000], 4000000)
    """
    count, height, width = clip.data.shape[:3]
    rate = clip.rate or 1.0
    times = clip.times or tuple(i / rate for i in range(count))
    return {
        "total_num_frames": round(count / rate * _TICKS),
        "fps": float(_TICKS),
        "width": width,
        "height": height,
        "duration": count / rate,
        "frames_indices": [round(moment * _TICKS) for moment in times],
    }


def size_of(medium: Decoded) -> str:
    """Say how large a medium is, for messages.

    Args:
        medium: A decoded medium.

    Example:
        >>> import numpy as np
        >>> size_of(Decoded(kind="audio", data=np.zeros(8000, np.float32), rate=16000.0))
        'a sound of 0.50 s'
    """
    if medium.kind == "image":
        return f"{medium.data.width} x {medium.data.height}"
    if medium.kind == "audio":
        return f"a sound of {len(medium.data) / (medium.rate or 1):.2f} s"
    count, height, width = medium.data.shape[:3]
    return f"{count} frames of {width} x {height}"
