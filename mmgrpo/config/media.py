"""``data.image``, ``data.audio``, ``data.video`` and ``data.adapters``: how media are read.

Only limits and choices; the rules themselves are written down where they are applied.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from mmgrpo.config.base import Float, Int, Section


class ImageLimits(Section):
    """``image``: which shapes of pictures are taken. Sizes are ``model.min_pixels`` and ``model.max_pixels``."""

    min_side: Int = Field(default=1, ge=1)
    """Smallest width and height, in pixels."""
    max_aspect_ratio: Float = Field(default=200.0, ge=1)
    """Longer side over shorter side. Processors of the Qwen family take no more than 200."""
    on_bad_shape: Literal["refuse", "pad"] = "refuse"
    """refuse: the picture cannot be read (see ``on_bad_media``); pad: widen it with ``background``, centred."""


class AudioLimits(Section):
    """``audio``: how long sounds may be. They are never cut."""

    max_seconds: Float | None = Field(default=None, gt=0)
    """Longer sounds are refused. None: as long as the processor reads without cutting."""
    min_seconds: Float = Field(default=0.05, ge=0)
    """Shorter sounds are refused."""


class VideoLimits(Section):
    """``video``: which frames are taken, and how large."""

    fps: Float | None = Field(default=2.0, gt=0)
    """Frames per second to take, spread evenly over the clip. None: every frame."""
    max_frames: Int = Field(default=64, ge=1)
    """At most so many frames, rounded to what the family reads at once (2: at least 2)."""
    max_pixels: Int | None = Field(default=602_112, ge=1)
    """Largest frame, in pixels (width times height). None: no limit but the processor's."""
    min_pixels: Int | None = Field(default=None, ge=1)
    """Smallest frame, in pixels; smaller ones are enlarged. None: the processor's."""
    max_total_pixels: Int | None = Field(default=None, ge=1)
    """Pixels of all frames of a clip together: each frame gets an equal share. None: no limit."""
    sound: bool = False
    """Give the clip's sound too, for families that read audio: woven into the clip for Qwen-Omni, else after it."""
    max_decode_seconds: Float = Field(default=10.0, gt=0)
    """A clip that takes longer to read is refused as broken."""

    @model_validator(mode="after")
    def _ordered(self) -> VideoLimits:
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} is larger than max_pixels {self.max_pixels}")
        return self


class MediaAdapter(Section):
    """One entry of ``adapters``: a plug-in that turns a sensor's files into pictures, sounds or clips."""

    fn: str
    """``path.py:Adapter``, ``module:Adapter``, or the name of an installed entry point of ``mmgrpo.adapters``."""
    args: dict[str, Any] = {}
    """Keyword arguments of its constructor."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """Take a plain name for an adapter without arguments."""
        return {"fn": value} if isinstance(value, str) else value
