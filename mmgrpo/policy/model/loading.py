"""Loading a policy: a hub id, a local folder, or a tiny model built in code; with its weights or only its outline.

Chooses class, device and dtype. What the YAML says of the processor is in ``processors``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from mmgrpo.config.model import Model
from mmgrpo.errors import ConfigError, explain
from mmgrpo.policy.attention.interface import NAME, register_attention
from mmgrpo.policy.families.generic import generic_family
from mmgrpo.policy.families.registry import find_family, tiny_names
from mmgrpo.policy.families.spec import FamilySpec, LoadedFamily
from mmgrpo.policy.model.checkpoint import friendly_errors, require_bitsandbytes
from mmgrpo.policy.model.processors import load_processor, prepare_processor
from mmgrpo.policy.model.saved_weights import load_checkpoint_weights
from mmgrpo.policy.patches import decoder_of, fuse_norms, project_patches

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model as it came from disk or from code, before anything is trained."""

    model: Any
    processor: Any
    """The processor, or the tokenizer of a text-only family."""
    family: FamilySpec
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenModel:
    """A model and its processor that a user has loaded; training changes this very object."""

    model: Any
    """A model of transformers with its head, of a family that is known here."""
    processor: Any
    """Its processor, or the tokenizer of a text-only model."""


def available_devices() -> dict[str, bool]:
    """Tell which devices this machine has, the one to prefer first."""
    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}


def choose_device(name: str) -> torch.device:
    """``auto`` takes cuda, then mps, then cpu.

    Raises:
        ConfigError: The named device is not there.
    """
    available = available_devices()
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


def load_model(settings: Model, given: GivenModel | None = None, *, folder: Path | None = None) -> LoadedModel:
    """Load model and processor.

    Args:
        settings: The ``model`` section.
        given: A model that the user has loaded, in place of the one that ``model.name`` names.
        folder: Of the YAML, where ``model.family`` is looked for first.

    Returns:
        The model in eval mode with every dropout at zero, its processor and its family.

    Raises:
        ConfigError: Unknown family, missing folder, or a device that is not there.
        ProcessorError: The checkpoint has no chat template and the YAML names none.
    """
    register_attention()
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    if given is not None:
        model, processor = given.model, given.processor
        known = find_family(model.config.model_type, named=settings.family, folder=folder)
        family = known or generic_family(model, processor)
        if settings.dtype != "auto":
            model = model.to(dtype)
    elif settings.name.startswith("tiny:"):
        model, processor, family = _tiny(settings, folder)
        model = model.to(dtype)
    else:
        processor = load_processor(settings)
        model, family = _checkpoint(settings, dtype, processor, folder)
    processor = prepare_processor(processor, family, settings)
    silence_dropout(model)
    project_patches(model)
    fuse_norms(model)
    if family.layout == "packed":
        decoder_of(model, family.decoder).set_attn_implementation(NAME)
    if settings.tune != "qlora":
        model = model.to(device)
    return LoadedModel(model=model.eval(), processor=processor, family=family, device=device)


def _tiny(settings: Model, folder: Path | None) -> tuple[Any, Any, FamilySpec]:
    name = settings.name.removeprefix("tiny:")
    family = find_family(name, named=settings.family, folder=folder)
    if family is None or family.tiny is None or family.name != name:
        raise ConfigError(
            explain("No such tiny model", where="model.name", got=settings.name, expected=", ".join(tiny_names()))
        )
    if settings.tune == "qlora":
        raise ConfigError(
            explain(
                "A tiny model has no 4-bit base",
                where="model.tune",
                got="qlora",
                fix="Rehearse with model.tune: lora; the adapters are the same.",
            )
        )
    model, processor = family.tiny(settings.sizes or {}, settings.seed)
    return model, processor, family


def _checkpoint(settings: Model, dtype: torch.dtype, processor: Any, folder: Path | None) -> tuple[Any, FamilySpec]:
    arguments: dict[str, Any] = {"revision": settings.revision, "trust_remote_code": settings.trust_remote_code}
    with friendly_errors(settings):
        config = transformers.AutoConfig.from_pretrained(settings.name, **arguments)
        family = find_family(config.model_type, named=settings.family, folder=folder)
        if settings.tune == "qlora":
            require_bitsandbytes()
            arguments["quantization_config"] = transformers.BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
            )
        where = f"model.name: {settings.name}"
        loader = _model_class(family, processor)
        model = load_checkpoint_weights(loader, settings.name, family, where=where, dtype=dtype, **arguments)
    return model, family or generic_family(model, processor)


def _model_class(family: FamilySpec | None, processor: Any) -> Any:
    """The transformers class of a family; of one without a record, by what its processor reads."""
    if family is not None:
        return getattr(transformers, family.model_class)
    reads_images = hasattr(processor, "image_processor")
    return transformers.AutoModelForImageTextToText if reads_images else transformers.AutoModelForCausalLM


def silence_dropout(model: nn.Module) -> None:
    """Set every dropout to zero: with any, the ratio at the first step would not be 1."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "activation_dropout", "layerdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutline:
    """What there is to know of a model before its weights are loaded."""

    model: nn.Module
    """Without storage, but for tiny models."""
    processor: Any
    family: FamilySpec
    family_info: LoadedFamily


def load_outline(settings: Model, *, folder: Path | None = None) -> ModelOutline:
    """Load a processor, and a model without weights.

    Args:
        settings: The ``model`` section.
        folder: Of the YAML, where ``model.family`` is looked for first.

    Raises:
        ConfigError: Unknown family, or no such checkpoint.
        ProcessorError: The checkpoint has no chat template and the YAML names none.
    """
    if settings.name.startswith("tiny:"):
        loaded = load_model(settings.model_copy(update={"device": "cpu"}), folder=folder)
        info = LoadedFamily(spec=loaded.family, config=loaded.model.config)
        return ModelOutline(model=loaded.model, processor=loaded.processor, family=loaded.family, family_info=info)
    processor = load_processor(settings)
    arguments: dict[str, Any] = {"trust_remote_code": settings.trust_remote_code}
    with friendly_errors(settings):
        config = transformers.AutoConfig.from_pretrained(settings.name, revision=settings.revision, **arguments)
        family = find_family(config.model_type, named=settings.family, folder=folder)
        loader = _model_class(family, processor)
        build = getattr(loader, "from_config", None) or loader._from_config
        with torch.device("meta"):
            model = build(config)
    family = family or generic_family(model, processor, probe=False)
    processor = prepare_processor(processor, family, settings)
    return ModelOutline(
        model=model, processor=processor, family=family, family_info=LoadedFamily(spec=family, config=config)
    )
