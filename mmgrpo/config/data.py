"""``data:`` where the rows are, how a row becomes a prompt, and how media are read."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from mmgrpo.config.base import Float, Int, OnlyWith, Plugin, Section, Text

_FORMATS = ("auto", "r1v", "trl", "swift", "easyr1", "vlm_r1", "sharegpt", "openai", "mmgrpo", "named")


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
    format: str = "auto"
    """The form of the rows: r1v, trl, swift, easyr1, vlm_r1, sharegpt, openai or mmgrpo; auto tells it by their
    columns, named reads the columns that ``columns`` names. Or a reader of your own, ``path.py:name``."""
    control_tokens: Literal["keep", "text"] = "keep"
    """Control tokens of the model (``<|im_end|>``) in a row's text. keep: the model reads them as its own, so that a
    question may forge a turn; text: it reads the letters."""
    media_root: str | None = None
    """Folder that relative media paths start from; nothing outside it is read. Default: the data file's folder."""
    shuffled_twins: bool = False
    """Give each row twice, one behind the other: its videos in order, and with their frames shuffled. Both have the
    columns pair and shuffled, for ``rewards/video.py:FrameOrderBonus``; an even ``prompts_per_step`` keeps them in one
    step of one process."""

    @field_validator("format")
    @classmethod
    def _format(cls, name: str) -> str:
        known = (*_FORMATS, *entry_points(group="mmgrpo.formats").names)
        if name in known or ":" in name:
            return name
        near = get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]}?" if near else "a reader of your own is written path.py:name"
        raise ValueError(f"no format is called {name!r:.80}; there is {', '.join(known)}; {advice}")


class Scenes(Section):
    """Rows made in code: CLEVR-like images with a known number of objects."""

    synthetic: Literal["counting"]
    """counting: how many objects are there?"""
    rows: Int = Field(ge=1)
    """How many scenes."""
    image_size: Int = Field(default=56, ge=16)
    """Width and height of an image, in pixels."""
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


class Beeps(Section):
    """Rows made in code: audio with a known number of beeps."""

    synthetic: Literal["beeps"]
    """beeps: how many times does it beep?"""
    rows: Int = Field(ge=1)
    """How many recordings."""
    seconds: Float = Field(default=2.0, gt=0, le=60)
    """Length of a recording."""
    min_beeps: Int = Field(default=1, ge=0)
    """Smallest count."""
    max_beeps: Int = Field(default=5, ge=1)
    """Largest count."""
    noise: Float = Field(default=0.01, ge=0, le=0.1)
    """Root mean square of the noise under the beeps, full scale being 1; a beep has 0.2 or more."""
    seed: Int = Field(default=0, ge=0)
    """Recordings of different seeds are different."""

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
    """Rows made in code: videos of a lamp that blinks, or of a square that moves."""

    synthetic: Literal["clips"]
    """clips: how often does it blink, or which way does it move?"""
    rows: Int = Field(ge=1)
    """How many videos."""
    question: Literal["blinks", "motion"] = "blinks"
    """blinks: count the times that the lamp lights up; motion: left, right, up or down."""
    image_size: Int = Field(default=56, ge=16)
    """Width and height of a frame, in pixels. Set ``data.video.min_pixels`` to its square, or processors enlarge
    it."""
    frames: Int = Field(default=16, ge=4, le=256)
    """Frames of a video."""
    fps: Float = Field(default=2.0, gt=0)
    """Frames per second. With ``data.video.fps`` below this, frames are left out, and blinks with them."""
    min_blinks: Int = Field(default=1, ge=0)
    """Smallest count."""
    max_blinks: Int = Field(default=4, ge=1)
    """Largest count."""
    seed: Int = Field(default=0, ge=0)
    """Videos of different seeds are different."""
    shuffled_twins: bool = False
    """Give each row twice, one behind the other: its videos in order, and with their frames shuffled. Both have the
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


class Package(Section):
    """Rows that an installed Python package ships."""

    package: Literal["easy_vqa"]
    """easy_vqa: images of one shape with questions and one-word answers (``pip install easy-vqa``)."""
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


class MixturePart(Section):
    """One source of a mixture."""

    source: Single
    """Where its rows are."""
    weight: Float | None = Field(default=None, ge=0)
    """Its share of the draws, relative to the others. None for all: each row of the mixture once an epoch."""
    end_weight: Float | None = Field(default=None, ge=0)
    """Its weight from step ``over_steps`` on; until then it moves there in a straight line. None: ``weight``."""


class Mixture(Section):
    """Rows of several sources. Each source has epochs of its own: all its rows come before one comes again."""

    mixture: tuple[MixturePart, ...] = Field(min_length=1)
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


def _end(part: MixturePart) -> float:
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


AUTO = "auto"
"""The column that the rows' form has for a role."""


class Columns(Section):
    """``columns``: which column of a row is what. Every other column goes to the rewards by its own name."""

    prompt: str = AUTO
    """The question: text, or chat messages. auto: by the form of the rows (problem, prompt, messages, …)."""
    image: str | tuple[str, ...] | None = AUTO
    """One image, or a list of images; several columns (``[left, right]``) are one list, in this order. auto: the
    columns image and images, if there are any. None: never any."""
    video: str | tuple[str, ...] | None = AUTO
    """One video, a list of videos, or a list of frames; several columns as above. auto: video and videos. None: never
    any."""
    audio: str | tuple[str, ...] | None = AUTO
    """One audio file, or a list of them; several columns as above. auto: audio and audios. None: never any."""
    answer: str | None = AUTO
    """The ground truth. auto: by the form of the rows (solution, answer, the last assistant turn). None: there is
    none."""
    id: str | None = None
    """A stable id; default: the row number."""


_EASY_FIRST = OnlyWith("kind: easy_first", lambda curriculum: curriculum.kind == "easy_first")
_BY_PASS_RATE = OnlyWith("kind: by_pass_rate", lambda curriculum: curriculum.kind == "by_pass_rate")


class Curriculum(Section):
    """``curriculum``: in which order rows come. Each row comes once an epoch, unless it is passed over."""

    kind: Literal["none", "easy_first", "by_pass_rate"] = "none"
    """none: shuffled; easy_first: by a difficulty column; by_pass_rate: rows that were always right or wrong are
    passed over for some epochs."""
    column: Annotated[str | None, _EASY_FIRST] = None
    """The column of numbers that grow with difficulty."""
    epochs: Annotated[Int, _EASY_FIRST] = Field(default=1, ge=1)
    """So many epochs go from easy to hard; later ones are shuffled."""
    low: Annotated[Float, _BY_PASS_RATE] = 0.0
    """A mean reward at or below this is always wrong, in units of the total reward."""
    high: Annotated[Float, _BY_PASS_RATE] = 1.0
    """A mean reward at or above this is always right."""
    revisit_epochs: Annotated[Int, _BY_PASS_RATE] = Field(default=2, ge=1)
    """Such a row is passed over in so many epochs, and then tried again."""

    @model_validator(mode="after")
    def _combinations(self) -> Curriculum:
        if (self.kind == "easy_first") != (self.column is not None):
            raise ValueError("curriculum.column names the difficulty, and goes with kind: easy_first")
        if self.low >= self.high:
            raise ValueError(f"curriculum.low {self.low} is not below curriculum.high {self.high}")
        return self


class Template(Section):
    """``template``: the words around a row. ``{{ column }}`` stands for a column of the row."""

    system: Text | None = None
    """System message."""
    user: Text = "{{ prompt }}"
    """User message; ``{{ prompt }}`` is the prompt column."""
    answer: Text | None = None
    """The ground truth as rewards get it, where the answer column (``{{ answer }}``) holds more than that. None: as it
    is."""


class ImageLimits(Section):
    """``image``: which shapes of images are taken. Sizes are ``model.min_pixels`` and ``model.max_pixels``."""

    min_side: Int = Field(default=1, ge=1)
    """Smallest width and height, in pixels."""
    max_aspect_ratio: Float = Field(default=200.0, ge=1)
    """Longer side over shorter side. Processors of the Qwen family take no more than 200."""
    on_bad_shape: Literal["refuse", "pad"] = "refuse"
    """refuse: the image cannot be read (see ``on_bad_media``); pad: widen it with ``background``, centred."""


class AudioLimits(Section):
    """``audio``: how long audio may be. It is never cut."""

    max_seconds: Float | None = Field(default=None, gt=0)
    """Longer audio is refused. None: as long as the processor reads without cutting."""
    min_seconds: Float = Field(default=0.05, ge=0)
    """Shorter audio is refused."""


class VideoLimits(Section):
    """``video``: which frames are taken, and how large."""

    fps: Float | None = Field(default=2.0, gt=0)
    """Frames per second to take, spread evenly over the video. None: every frame."""
    max_frames: Int = Field(default=64, ge=1)
    """At most so many frames, rounded to what the family reads at once (2: at least 2)."""
    max_pixels: Int | None = Field(default=602_112, ge=1)
    """Largest frame, in pixels (width times height). None: no limit but the processor's."""
    min_pixels: Int | None = Field(default=None, ge=1)
    """Smallest frame, in pixels; smaller ones are enlarged. None: the processor's."""
    max_total_pixels: Int | None = Field(default=None, ge=1)
    """Pixels of all frames of a video together: each frame gets an equal share. None: no limit."""
    sound: bool = False
    """Give the video's audio track too, for families that read audio: interleaved for Qwen-Omni, else after it."""
    max_decode_seconds: Float = Field(default=10.0, gt=0)
    """A video that takes longer to read is refused as broken."""

    @model_validator(mode="after")
    def _ordered(self) -> VideoLimits:
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} is larger than max_pixels {self.max_pixels}")
        return self


class MediaAdapter(Section):
    """One entry of ``adapters``: a plug-in that turns a sensor's files into images, audio or videos."""

    fn: Plugin
    """``path.py:Adapter``, ``module:Adapter``, or the name of an installed entry point of ``mmgrpo.adapters``."""
    args: dict[str, Any] = {}
    """Keyword arguments of its constructor."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """Take a plain name for an adapter without arguments."""
        return {"fn": value} if isinstance(value, str) else value


_REMOTE = OnlyWith("allow_remote: true", lambda data: data.allow_remote)


class Data(Section):
    """The rows."""

    train: Source | None = None
    """Rows to learn from. May be left out when rows are given in Python."""
    eval: Source | None = None
    """Held-out rows. Given, they switch ``eval`` on; ``eval: null`` keeps it off."""
    config: str | None = None
    """A file of ``datasets_configs/``: keys of this section that lie underneath those of the YAML (columns, template,
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
    on_long_prompt: Annotated[
        Literal["error", "skip"], OnlyWith("max_prompt_tokens", lambda data: data.max_prompt_tokens is not None)
    ] = "error"
    """What to do with a training row whose prompt is longer: stop, or leave the row out when it comes (named in a
    warning)."""
    background: tuple[Int, Int, Int] = (255, 255, 255)
    """Colour (red, green, blue) under transparent pixels, and around images that are padded."""
    image: ImageLimits = ImageLimits()
    """Which shapes of images are taken."""
    audio: AudioLimits = AudioLimits()
    """How long audio may be."""
    video: VideoLimits = VideoLimits()
    """Which frames of a video are taken, and how large."""
    adapters: tuple[MediaAdapter, ...] = ()
    """Plug-ins for other sensors; each is asked, in order, before the built-in readers."""
    shuffle: bool = True
    """Draw the rows of each epoch in a new order."""
    seed: Int = Field(default=0, ge=0)
    """Order of the rows, and the choice under ``limit``."""
    on_bad_media: Literal["error", "skip"] = "error"
    """What to do with a row with a media item that cannot be read: stop, or leave the row out (counted and named)."""
    allow_absolute_media: bool = True
    """Read media whose path is absolute."""
    allow_remote: bool = False
    """Download media whose address is http or https, each once, into the cache folder of the user. Addresses of this
    machine and of private networks are refused."""
    remote_bytes: Annotated[Int, _REMOTE] = Field(default=100_000_000, ge=1)
    """Largest download of one media item, in bytes."""
    remote_seconds: Annotated[Float, _REMOTE] = Field(default=30.0, gt=0)
    """Longest download of one media item."""
