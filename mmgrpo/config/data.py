"""``data:`` where the rows are and how a row becomes a prompt."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from mmgrpo.config.base import Float, Int, Section
from mmgrpo.config.media import AudioLimits, ImageLimits, MediaAdapter, VideoLimits
from mmgrpo.config.sources import Files, Mixture, Package, Part, Scenes, Single, Source

__all__ = [
    "AUTO", "Columns", "Curriculum", "Data", "Files", "Mixture", "Package", "Part", "Scenes", "Single", "Source",
    "Template",
]  # fmt: skip

AUTO = "auto"
"""The column that the rows' form has for a role."""


class Columns(Section):
    """``columns``: which column of a row is what. Every other column goes to the rewards by its own name."""

    prompt: str = AUTO
    """The question: text, or chat messages. auto: by the form of the rows (problem, prompt, messages, …)."""
    image: str | tuple[str, ...] | None = AUTO
    """One picture, or a list of pictures; several columns (``[left, right]``) are one list, in this order. auto: the
    columns image and images, if there are any. None: never any."""
    video: str | tuple[str, ...] | None = AUTO
    """One clip, a list of clips, or a list of frames; several columns as above. auto: video and videos. None: never
    any."""
    audio: str | tuple[str, ...] | None = AUTO
    """One sound, or a list of sounds; several columns as above. auto: audio and audios. None: never any."""
    answer: str | None = AUTO
    """The truth. auto: by the form of the rows (solution, answer, the last assistant turn). None: there is none."""
    id: str | None = None
    """A stable id; default: the row number."""


class Curriculum(Section):
    """``curriculum``: in which order rows come. Each row comes once an epoch, unless it is passed over."""

    kind: Literal["none", "easy_first", "by_pass_rate"] = "none"
    """none: shuffled; easy_first: by a difficulty column; by_pass_rate: rows that were always right or wrong are
    passed over for some epochs."""
    column: str | None = None
    """easy_first: the column of numbers that grow with difficulty."""
    epochs: Int = Field(default=1, ge=1)
    """easy_first: so many epochs go from easy to hard; later ones are shuffled."""
    low: Float = 0.0
    """by_pass_rate: a mean reward at or below this is always wrong, in units of the total reward."""
    high: Float = 1.0
    """by_pass_rate: a mean reward at or above this is always right."""
    revisit_epochs: Int = Field(default=2, ge=1)
    """by_pass_rate: such a row is passed over in so many epochs, and then tried again."""

    @model_validator(mode="after")
    def _combinations(self) -> Curriculum:
        if (self.kind == "easy_first") != (self.column is not None):
            raise ValueError("curriculum.column names the difficulty, and goes with kind: easy_first")
        if self.low >= self.high:
            raise ValueError(f"curriculum.low {self.low} is not below curriculum.high {self.high}")
        return self


class Template(Section):
    """``template``: the words around a row. ``{{ column }}`` stands for a column of the row."""

    system: str | None = None
    """System message."""
    user: str = "{{ prompt }}"
    """User message; ``{{ prompt }}`` is the prompt column."""
    answer: str | None = None
    """The truth as rewards get it, where the answer column (``{{ answer }}``) holds more than that. None: as it is."""


class Data(Section):
    """The rows."""

    train: Source | None = None
    """Rows to learn from. May be left out when rows are given in Python."""
    eval: Source | None = None
    """Held-out rows; needed when ``eval`` is on."""
    config: str | None = None
    """A file of ``datasets_configs/``: keys of this section that lie underneath those given here (columns, template,
    train, eval). Once loaded they are merged and this key is null."""
    columns: Columns = Columns()
    """Which column is what."""
    template: Template = Template()
    """The words around a row."""
    curriculum: Curriculum = Curriculum()
    """In which order rows come."""
    prefetch: Int = Field(default=1, ge=0, le=16)
    """Threads that decode and process the prompts of the next step during this one; 0: each when it is needed. The
    prompts and their order are the same."""
    max_prompt_tokens: Int | None = Field(default=None, ge=1)
    """Longer prompts are refused with their sizes; nothing is ever cut. None: no limit."""
    on_long_prompt: Literal["error", "skip"] = "error"
    """What to do with a training row whose prompt is longer: stop, or leave the row out when it comes (named in a
    warning)."""
    background: tuple[Int, Int, Int] = (255, 255, 255)
    """Colour (red, green, blue) under transparent pixels, and around pictures that are padded."""
    image: ImageLimits = ImageLimits()
    """Which shapes of pictures are taken."""
    audio: AudioLimits = AudioLimits()
    """How long sounds may be."""
    video: VideoLimits = VideoLimits()
    """Which frames of a clip are taken, and how large."""
    adapters: tuple[MediaAdapter, ...] = ()
    """Plug-ins for other sensors; each is asked, in order, before the built-in readers."""
    shuffle: bool = True
    """Draw the rows of each epoch in a new order."""
    seed: Int = Field(default=0, ge=0)
    """Order of the rows, and the choice under ``limit``."""
    on_bad_media: Literal["error", "skip"] = "error"
    """What to do with a row whose medium cannot be read: stop, or leave the row out (counted and named)."""
    allow_absolute_media: bool = True
    """Read media whose path is absolute."""
    allow_remote: bool = False
    """Download media whose address is http or https, each once, into the cache folder of the user. Addresses of this
    machine and of private networks are refused."""
    remote_bytes: Int = Field(default=100_000_000, ge=1)
    """Largest download of one medium, in bytes."""
    remote_seconds: Float = Field(default=30.0, gt=0)
    """Longest download of one medium."""
