"""Loading a policy: a hub id, a local folder, or a tiny twin built in code.

Chooses class, device and dtype, and applies the YAML's limits to the processor once, so that trainer, engine,
evaluation and the saved checkpoint all see the same pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from mmgrpo.config.model import Model
from mmgrpo.errors import ConfigError, ProcessorError, explain
from mmgrpo.policy.attention import NAME, register
from mmgrpo.policy.families.record import Family
from mmgrpo.policy.families.registry import family_of, tiny_names

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model as it came from disk or from code, before anything is trained."""

    model: Any
    processor: Any
    """The processor, or the tokenizer of a text-only family."""
    family: Family
    device: torch.device


def choose_device(name: str) -> torch.device:
    """``auto`` takes cuda, then mps, then cpu.

    Raises:
        ConfigError: The named device is not there.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(d for d, there in available.items() if there))
    if not available[name]:
        there = ", ".join(d for d, ok in available.items() if ok)
        raise ConfigError(explain("This device is not there", where="model.device", got=name, expected=there))
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 on a GPU that has it and float32 elsewhere."""
    if name != "auto":
        return _DTYPES[name]
    return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32


def load_model(settings: Model) -> LoadedModel:
    """Load model and processor.

    Args:
        settings: The ``model`` section.

    Returns:
        The model in eval mode with every dropout at zero, its processor and its family.

    Raises:
        ConfigError: Unknown family, missing folder, or a device that is not there.
        ProcessorError: The checkpoint has no chat template and the YAML names none.
    """
    register()
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    if settings.name.startswith("tiny:"):
        model, processor, family = _tiny(settings)
        model = model.to(dtype)
    else:
        processor = _processor(settings)
        _require_template(processor, settings)
        model, family = _checkpoint(settings, dtype)
    _set_template(processor, settings)
    _require_template(processor, settings)
    set_pixel_limits(processor, settings.min_pixels, settings.max_pixels)
    silence_dropout(model)
    decoder = _submodule(model, family.decoder)
    decoder.set_attn_implementation(NAME)
    if settings.tune != "qlora":
        model = model.to(device)
    return LoadedModel(model=model.eval(), processor=processor, family=family, device=device)


def _tiny(settings: Model) -> tuple[Any, Any, Family]:
    name = settings.name.removeprefix("tiny:")
    if settings.name not in tiny_names():
        raise ConfigError(
            explain("No such tiny model", where="model.name", got=settings.name, expected=", ".join(tiny_names()))
        )
    family = family_of(name)
    assert family.tiny is not None
    model, processor = family.tiny(settings.sizes or {}, settings.seed)
    return model, processor, family


def _processor(settings: Model) -> Any:
    with _said_plainly(settings):
        return transformers.AutoProcessor.from_pretrained(
            settings.name, revision=settings.revision, trust_remote_code=settings.trust_remote_code
        )


def _checkpoint(settings: Model, dtype: torch.dtype) -> tuple[Any, Family]:
    arguments: dict[str, Any] = {"revision": settings.revision, "trust_remote_code": settings.trust_remote_code}
    with _said_plainly(settings):
        config = transformers.AutoConfig.from_pretrained(settings.name, **arguments)
        family = family_of(config.model_type)
        if settings.tune == "qlora":
            arguments["quantization_config"] = transformers.BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
            )
        loader = getattr(transformers, family.model_class)
        return loader.from_pretrained(settings.name, dtype=dtype, **arguments), family


class _said_plainly:
    """Turn transformers' loading errors into one sentence with the folder and the way out."""

    def __init__(self, settings: Model) -> None:
        self.settings = settings

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError | ValueError | ImportError) or isinstance(error, ConfigError):
            return
        name = self.settings.name
        looks_local = Path(name).exists() or name.startswith((".", "/"))
        raise ConfigError(
            explain(
                "The checkpoint cannot be loaded",
                where=f"model.name: {name}",
                expected="a folder with config.json, weights and processor files" if looks_local else "a hub id",
                got=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
                fix=f"Check the path, or rehearse without a checkpoint: model.name={tiny_names()[1]}",
            )
        ) from error


def _set_template(processor: Any, settings: Model) -> None:
    if settings.chat_template is None:
        return
    path = Path(settings.chat_template)
    if not path.is_file():
        raise ConfigError(explain("The chat template is not there", where="model.chat_template", got=str(path)))
    processor.chat_template = path.read_text(encoding="utf-8")


def _require_template(processor: Any, settings: Model) -> None:
    tokenizer = getattr(processor, "tokenizer", processor)
    if settings.chat_template or getattr(processor, "chat_template", None) or tokenizer.chat_template:
        return
    raise ProcessorError(
        explain(
            "The checkpoint has no chat template",
            where=f"model.name: {settings.name}",
            fix="Name a Jinja file under model.chat_template.",
        )
    )


def set_pixel_limits(processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
    """Write the picture limits into the image processor itself, where saving the processor keeps them.

    Args:
        processor: A processor; one without pictures is left alone.
        min_pixels: Smallest picture after resizing, in pixels; None keeps the checkpoint's.
        max_pixels: Largest; None keeps the checkpoint's.
    """
    image = getattr(processor, "image_processor", None)
    if image is None or (min_pixels is None and max_pixels is None):
        return
    size = dict(image.size) if image.size is not None else {}
    if min_pixels is not None:
        size["shortest_edge"] = min_pixels
    if max_pixels is not None:
        size["longest_edge"] = max_pixels
        size["shortest_edge"] = min(size.get("shortest_edge", max_pixels), max_pixels)
    image.size = size
    for name, value in (("min_pixels", size.get("shortest_edge")), ("max_pixels", size.get("longest_edge"))):
        if getattr(image, name, None) is not None:
            setattr(image, name, value)


def silence_dropout(model: nn.Module) -> None:
    """Set every dropout to zero: with any, the ratio at the first step would not be 1."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0  # type: ignore[assignment]


def _submodule(model: nn.Module, path: str) -> Any:
    return model.get_submodule(path)
