"""``data:`` where the rows are and how a row becomes a prompt."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from mmgrpo.config.base import Float, Int, Section
from mmgrpo.config.media import AudioLimits, ImageLimits, MediaAdapter, VideoLimits


class Files(Section):
    """Rows from files, a folder, or the hub."""

    path: str
    """A file (.jsonl, .json, .csv, .parquet, .arrow), a dataset folder, or a hub id. Relative to the YAML, then to the
    working folder."""
    split: str = "train"
    """Split of a dataset folder or hub id."""
    config: str | None = None
    """Configuration of a hub id."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    limit: Int | None = Field(default=None, ge=1)
    """Take this many rows, chosen by ``data.seed``."""
    media_root: str | None = None
    """Folder that relative media paths start from; nothing outside it is read. Default: the data file's folder."""


class Scenes(Section):
    """Rows made in code: CLEVR-like pictures with a known number of objects."""

    synthetic: Literal["counting"]
    """counting: how many objects are there?"""
    rows: Int = Field(ge=1)
    """How many scenes."""
    image_size: Int = Field(default=56, ge=16)
    """Width and height of a picture, in pixels."""
    min_objects: Int = Field(default=1, ge=0)
    """Smallest count."""
    max_objects: Int = Field(default=8, ge=1)
    """Largest count."""
    max_hidden: Float = Field(default=0.4, ge=0, lt=1)
    """No object is hidden by others beyond this share of its own area."""
    seed: Int = Field(default=0, ge=0)
    """Scenes of different seeds are different."""

    @model_validator(mode="after")
    def _ordered(self) -> Scenes:
        if self.min_objects > self.max_objects:
            raise ValueError(f"min_objects {self.min_objects} is larger than max_objects {self.max_objects}")
        return self


class Package(Section):
    """Rows that an installed Python package ships."""

    package: Literal["easy_vqa"]
    """easy_vqa: pictures of one shape with questions and one-word answers (``pip install easy-vqa``)."""
    split: Literal["train", "test"] = "train"
    """Split of the package's rows."""
    limit: Int | None = Field(default=None, ge=1)
    """Take this many rows, chosen by ``data.seed``."""


_TAGS = {"synthetic": "scenes", "package": "package"}


def _variant(value: object) -> str:
    for key, tag in _TAGS.items():
        if (isinstance(value, dict) and key in value) or hasattr(value, key):
            return tag
    return "files"


Source = Annotated[
    Annotated[Files, Tag("files")] | Annotated[Scenes, Tag("scenes")] | Annotated[Package, Tag("package")],
    Discriminator(_variant),
]
"""``{path: …}`` reads files, ``{synthetic: …}`` makes rows in code, ``{package: …}`` takes those of a package."""


class Columns(Section):
    """``columns``: which column of a row is what. Every other column goes to the rewards by its own name."""

    prompt: str = "problem"
    """The question: text, or chat messages."""
    image: str | None = "image"
    """One picture, or a list of pictures. None: the rows have none."""
    answer: str | None = "solution"
    """The truth."""
    id: str | None = None
    """A stable id; default: the row number."""


class Template(Section):
    """``template``: the words around a row. ``{{ column }}`` stands for a column of the row."""

    system: str | None = None
    """System message."""
    user: str = "{{ prompt }}"
    """User message; ``{{ prompt }}`` is the prompt column."""


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
    max_prompt_tokens: Int | None = Field(default=None, ge=1)
    """Longer prompts are refused with their sizes; nothing is ever cut. None: no limit."""
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
