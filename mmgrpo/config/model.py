"""``model:`` which policy, where it runs, and which of its parts are trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mmgrpo.config.base import Float, Int, OnlyWith, Plugin, Section


class Lora(Section):
    """``model.lora``: low-rank adapters, under ``tune: lora`` and ``tune: qlora``."""

    r: Int = Field(default=16, ge=1)
    """Rank of the adapters."""
    alpha: Float = Field(default=32.0, gt=0)
    """Scale: the update is multiplied by alpha / r (by alpha / sqrt(r) with ``rslora``)."""
    dropout: Float = Field(default=0.0, ge=0, lt=1)
    """Above 0 the ratio at the first step is not exactly 1 any more; a warning says so."""
    targets: tuple[str, ...] = ("language",)
    """Parts (language, vision, projector, audio), "all-linear", or names of linear layers (q_proj, …). The last two
    reach encoders only where ``model.freeze`` sets these free, or a part or a layer's full name is given."""
    rslora: bool = False
    """Scale by alpha / sqrt(r), which keeps large ranks stable."""
    modules_to_save: tuple[str, ...] = ()
    """Modules trained whole beside the adapters, for example lm_head."""
    adapter: str | None = None
    """Start from this trained adapter (a folder or hub id). It becomes part of the reference."""


class Freeze(Section):
    """``model.freeze``: parts that do not learn."""

    vision: bool = True
    """The image and video encoder."""
    projector: bool = True
    """What maps encoder features to the language model's width."""
    audio: bool = True
    """The audio encoder."""
    language: bool = False
    """The language model."""


def _is_tiny(model: Any) -> bool:
    return model.name.startswith("tiny:")


_TINY = OnlyWith("name: tiny:FAMILY", _is_tiny)


class Model(Section):
    """The policy."""

    name: str
    """A hub id, a local folder, or ``tiny:FAMILY`` (built in code, about one million parameters, no network)."""
    family: Plugin | None = None
    """Record of a family that mmgrpo does not know: ``path.py:name``, ``module:name``, or the name of an installed
    entry point of ``mmgrpo.families``. null: found by the checkpoint's model type."""
    revision: str | None = None
    """Branch, tag or commit of the hub id."""
    trust_remote_code: bool = False
    """Run Python code that comes with the checkpoint. Off unless you say so."""
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    """auto takes cuda, then mps, then cpu."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on a GPU, float32 elsewhere. Full training in bfloat16 keeps float32 master weights."""
    tune: Literal["full", "lora", "qlora"] = "full"
    """What is trained: all unfrozen weights, low-rank adapters, or adapters on a 4-bit base."""
    lora: Annotated[Lora | None, OnlyWith("tune: lora or tune: qlora", lambda model: model.tune != "full")] = None
    """Adapter settings; only with tune: lora or qlora."""
    freeze: Freeze = Freeze()
    """Parts that do not learn."""
    gradient_checkpointing: bool = False
    """Recompute activations in backward: less memory, about a third more time in the update."""
    layout: Literal["auto", "packed", "rows"] = "auto"
    """packed computes each prompt once per group; rows is the fallback for attention that cannot be shared."""
    logprob_chunk_tokens: Int = Field(default=1024, ge=1)
    """Completion tokens per pass through the LM head; held memory grows with this, not with the batch."""
    chat_template: str | None = None
    """A Jinja file, for checkpoints without a template of their own."""
    max_pixels: Int | None = Field(default=None, ge=1)
    """Largest image after resizing, in pixels (width times height). Saved with the checkpoint's processor."""
    min_pixels: Int | None = Field(default=None, ge=1)
    """Smallest image after resizing, in pixels."""
    seed: Annotated[Int, _TINY] = Field(default=0, ge=0)
    """Initial weights of a ``tiny:`` model."""
    sizes: Annotated[dict[str, Int] | None, _TINY] = None
    """Overrides of a ``tiny:`` model's sizes, for example {hidden_size: 256, num_hidden_layers: 6}."""

    @model_validator(mode="after")
    def _combinations(self) -> Model:
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"model.min_pixels {self.min_pixels} is larger than model.max_pixels {self.max_pixels}")
        if self.tune != "full" and self.lora is None:
            # a copy would be dropped where the section is built in Python; nobody has seen this one yet
            object.__setattr__(self, "lora", Lora())
        return self
