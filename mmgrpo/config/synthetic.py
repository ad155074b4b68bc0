"""Sources of rows that are made in code: sounds and clips whose truth is known."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from mmgrpo.config.base import Float, Int, Section


class Beeps(Section):
    """Rows made in code: sounds with a known number of beeps."""

    synthetic: Literal["beeps"]
    """beeps: how many times does it beep?"""
    rows: Int = Field(ge=1)
    """How many sounds."""
    seconds: Float = Field(default=2.0, gt=0, le=60)
    """Length of a sound."""
    min_beeps: Int = Field(default=1, ge=0)
    """Smallest count."""
    max_beeps: Int = Field(default=5, ge=1)
    """Largest count."""
    noise: Float = Field(default=0.01, ge=0, le=0.1)
    """Root mean square of the noise under the beeps, full scale being 1; a beep has 0.2 or more."""
    seed: Int = Field(default=0, ge=0)
    """Sounds of different seeds are different."""

    @model_validator(mode="after")
    def _fits(self) -> Beeps:
        if self.min_beeps > self.max_beeps:
            raise ValueError(f"min_beeps {self.min_beeps} is larger than max_beeps {self.max_beeps}")
        if self.max_beeps * 0.2 > self.seconds:
            raise ValueError(
                f"{self.max_beeps} beeps need {self.max_beeps * 0.2:g} seconds, there are {self.seconds:g}"
            )
        return self


class Clips(Section):
    """Rows made in code: clips of a lamp that blinks, or of a square that moves."""

    synthetic: Literal["clips"]
    """clips: how often does it blink, or which way does it move?"""
    rows: Int = Field(ge=1)
    """How many clips."""
    question: Literal["blinks", "motion"] = "blinks"
    """blinks: count the times that the lamp lights up; motion: left, right, up or down."""
    image_size: Int = Field(default=56, ge=16)
    """Width and height of a frame, in pixels. Set ``data.video.min_pixels`` to its square, or processors enlarge
    it."""
    frames: Int = Field(default=16, ge=4, le=256)
    """Frames of a clip."""
    fps: Float = Field(default=2.0, gt=0)
    """Frames per second. With ``data.video.fps`` below this, frames are left out, and blinks with them."""
    min_blinks: Int = Field(default=1, ge=0)
    """Smallest count."""
    max_blinks: Int = Field(default=4, ge=1)
    """Largest count."""
    seed: Int = Field(default=0, ge=0)
    """Clips of different seeds are different."""
    shuffled_twins: bool = False
    """Give each row twice, one behind the other: its clips in order, and with their frames shuffled. Both have the
    columns pair and shuffled, for ``rewards/video.py:FrameOrderBonus``; an even ``prompts_per_step`` keeps them in one
    step of one process."""

    @model_validator(mode="after")
    def _fits(self) -> Clips:
        if self.min_blinks > self.max_blinks:
            raise ValueError(f"min_blinks {self.min_blinks} is larger than max_blinks {self.max_blinks}")
        if self.question == "blinks" and 2 * self.max_blinks + 1 > self.frames:
            raise ValueError(
                f"{self.max_blinks} blinks need {2 * self.max_blinks + 1} frames, there are {self.frames}"
            )
        return self
