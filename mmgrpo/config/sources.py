"""Where rows are: files, rows made in code, rows of a package, or a mixture of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from mmgrpo.config.base import Float, Int, Section
from mmgrpo.config.synthetic import Beeps, Clips


class Files(Section):
    """Rows from files, a folder, or the hub."""

    path: str
    """A file (.jsonl, .json, .csv, .parquet, .arrow), several (``parts/*.jsonl``), tar shards (``shards/*.tar``), a
    dataset folder, or a hub id. Relative to the YAML, then to the working folder."""
    split: str = "train"
    """Split of a dataset folder or hub id."""
    config: str | None = None
    """Configuration of a hub id."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    streaming: bool = False
    """Hub id: read the first ``limit`` rows and download no more than those."""
    limit: Int | None = Field(default=None, ge=1)
    """Take this many rows, chosen by ``seed``. ``path: rows.jsonl#500`` says the same."""
    seed: Int | None = Field(default=None, ge=0)
    """Which rows are taken under ``limit``; None: ``data.seed``."""
    format: Literal["auto", "r1v", "trl", "swift", "easyr1", "vlm_r1", "sharegpt", "openai", "mmgrpo", "named"] = (
        "auto"
    )
    """The form of the rows; auto tells it by their columns, named reads the columns that ``columns`` names."""
    media_root: str | None = None
    """Folder that relative media paths start from; nothing outside it is read. Default: the data file's folder."""
    shuffled_twins: bool = False
    """Give each row twice, one behind the other: its clips in order, and with their frames shuffled. Both have the
    columns pair and shuffled, for ``rewards/video.py:FrameOrderBonus``; an even ``prompts_per_step`` keeps them in one
    step of one process."""


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
    """Take this many rows, chosen by ``seed``."""
    seed: Int | None = Field(default=None, ge=0)
    """Which rows are taken under ``limit``; None: ``data.seed``."""


_TAGS = {"synthetic": "scenes", "package": "package", "mixture": "mixture"}


def _variant(value: object) -> str:
    made = value.get("synthetic") if isinstance(value, dict) else getattr(value, "synthetic", None)
    if made in ("beeps", "clips"):
        return str(made)
    for key, tag in _TAGS.items():
        if (isinstance(value, dict) and key in value) or hasattr(value, key):
            return tag
    return "files"


def _single(value: object) -> str:
    variant = _variant(value)
    return "files" if variant == "mixture" else variant


Single = Annotated[
    Annotated[Files, Tag("files")]
    | Annotated[Scenes, Tag("scenes")]
    | Annotated[Beeps, Tag("beeps")]
    | Annotated[Clips, Tag("clips")]
    | Annotated[Package, Tag("package")],
    Discriminator(_single),
]
"""``{path: …}`` reads files, ``{synthetic: …}`` makes rows in code, ``{package: …}`` takes those of a package."""


class Part(Section):
    """One source of a mixture."""

    source: Single
    """Where its rows are."""
    weight: Float | None = Field(default=None, ge=0)
    """Its share of the draws, relative to the others. None for all: each row of the mixture once an epoch."""
    end_weight: Float | None = Field(default=None, ge=0)
    """Its weight from step ``over_steps`` on; until then it moves there in a straight line. None: ``weight``."""


class Mixture(Section):
    """Rows of several sources. Each source has epochs of its own: all its rows come before one comes again."""

    mixture: tuple[Part, ...] = Field(min_length=1)
    """The sources, with their weights."""
    over_steps: Int | None = Field(default=None, ge=1)
    """Steps over which weights move to ``end_weight``."""

    @model_validator(mode="after")
    def _weights(self) -> Mixture:
        weights = [part.weight for part in self.mixture]
        if any(weight is None for weight in weights) and any(weight is not None for weight in weights):
            raise ValueError("give every source of the mixture a weight, or none")
        if weights[0] is not None and not sum(weight or 0 for weight in weights):
            raise ValueError("the weights of the mixture are all 0")
        moving = any(part.end_weight is not None for part in self.mixture)
        if moving != (self.over_steps is not None):
            raise ValueError("end_weight and over_steps go together: weights move to end_weight over so many steps")
        if moving and weights[0] is None:
            raise ValueError("end_weight needs a weight to start from")
        if moving and not sum(_end(part) for part in self.mixture):
            raise ValueError("the weights at the end of over_steps are all 0")
        return self


def _end(part: Part) -> float:
    return (part.weight if part.end_weight is None else part.end_weight) or 0.0


Source = Annotated[
    Annotated[Files, Tag("files")]
    | Annotated[Scenes, Tag("scenes")]
    | Annotated[Beeps, Tag("beeps")]
    | Annotated[Clips, Tag("clips")]
    | Annotated[Package, Tag("package")]
    | Annotated[Mixture, Tag("mixture")],
    Discriminator(_variant),
]
"""One source, or ``{mixture: [{source: …, weight: …}, …]}`` for several."""
