"""A record for families that have none: the model's own forward up to its language model, each completion in a row.

What the model hands to its language model, embeddings with image features in them and positions, is taken from the
call itself. That is exact wherever the language model is causal over its row and needs nothing else; a self-check
compares log-probs with the model's own before anything is trained, and says which fact is missing where they differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.errors import ConfigError, ProcessorError, explain
from mmgrpo.policy.families.common import text_positions
from mmgrpo.policy.families.spec import EncodedPrompt, FamilySpec, Join
from mmgrpo.types import Prompt

_DECODERS = ("model.language_model", "language_model.model", "language_model", "model.text_model", "text_model")
_PARTS = {
    "vision": re.compile(r"vision|visual|image_encoder|vit\b"),
    "audio": re.compile(r"audio|speech"),
    "projector": re.compile(r"projector|connector|merger|aligner|resampler|newline"),
}
_USUAL = {"inputs_embeds", "position_ids", "attention_mask", "cache_position"}


class _AnyKey(dict[str, Join]):
    """Every key of a processor is known: it stays with its prompt."""

    def get(self, name: str, default: Any = None) -> Any:
        return "tokens" if name.endswith("token_type_ids") else "list"


class _ReachedDecoder(Exception):
    """Carries what a model hands to its language model."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.arguments = arguments


def generic_family(model: nn.Module, processor: Any, *, probe: bool = True) -> FamilySpec:
    """Build a record from a loaded model.

    Args:
        model: The model; without storage where ``probe`` is off.
        processor: Its processor, or tokenizer.
        probe: Run a few tokens through the embeddings to learn the position axes.

    Raises:
        ConfigError: A fact that the record needs is not to be found.
    """
    config: Any = model.config
    decoder = _decoder_path(model)
    token = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", None)
    reads = token is not None and hasattr(processor, "image_processor")
    if hasattr(processor, "image_processor") and token is None:
        raise missing_fact(config.model_type, "config.image_token_id, the placeholder of images, is not there")
    tokens: dict[str, tuple[int, ...]] = {"image": (int(token),)} if reads else {}
    spec = FamilySpec(
        name=config.model_type,
        kinds=frozenset(tokens),
        parts=_find_parts(model),
        keys=_AnyKey(),
        decoder=decoder,
        axes=1,
        layout="unpacked",
        generic=True,
        encode_media=lambda model, prompts, inputs: [_encode(model, decoder, prompt) for prompt in prompts],
        media_tokens=lambda config: tokens,
        count_features=lambda prompt, config: _count(prompt, tokens),
    )
    if not probe:
        return spec
    device = model.get_input_embeddings().weight.device  # type: ignore[operator, union-attr]
    arguments = _handed(model, decoder, {"input_ids": torch.zeros(1, 3, dtype=torch.long, device=device)}, "a text")
    positions = arguments.get("position_ids")
    axes = 1 if positions is None or positions.ndim == 2 else positions.shape[0]
    return FamilySpec(**{name: getattr(spec, name) for name in FamilySpec.__slots__} | {"axes": axes})


def missing_fact(model_type: str, fact: str) -> ConfigError:
    """Say in one sentence why a family needs a record of its own."""
    return ConfigError(
        explain(
            f"No family record for {model_type!r}, and the generic one does not fit",
            where="model.name",
            got=fact,
            fix="Write a record (docs/families.md) and name it under model.family: path.py:name.",
        )
    )


def _decoder_path(model: Any) -> str:
    modules = dict(model.named_modules())
    for path in _DECODERS:
        if path in modules:
            return path
    inner = model.get_decoder() if hasattr(model, "get_decoder") else None
    for path, module in modules.items():
        if module is inner and path:
            return path
    raise missing_fact(model.config.model_type, f"its language model is at none of {', '.join(_DECODERS)}")


def _find_parts(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Prefixes of parameter names up to the module whose name tells the part."""
    prefixes: dict[str, dict[str, None]] = {}
    for name, _ in model.named_parameters():
        pieces = name.split(".")
        for i, piece in enumerate(pieces):
            for part, pattern in _PARTS.items():
                if pattern.search(piece):
                    end = "" if i == len(pieces) - 1 else "."
                    prefixes.setdefault(part, {})[".".join(pieces[: i + 1]) + end] = None
    return {part: tuple(found) for part, found in prefixes.items()}


def _handed(model: Any, decoder: str, inputs: Mapping[str, Any], whose: str) -> Mapping[str, Any]:
    """What a model hands to its language model, which is not run."""

    def stop(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        raise _ReachedDecoder(kwargs)

    hook = attrgetter(decoder)(model).register_forward_pre_hook(stop, with_kwargs=True)
    try:
        model(**inputs, use_cache=False)
    except _ReachedDecoder as reached:
        return reached.arguments
    except (ValueError, RuntimeError, TypeError) as error:  # its own count of placeholders, among others
        raise ProcessorError(
            explain(f"The model refuses {whose}", where=model.config.model_type, got=str(error).splitlines()[0])
        ) from error
    finally:
        hook.remove()
    raise missing_fact(model.config.model_type, "its forward does not call its language model")


def _encode(model: Any, decoder: str, prompt: Prompt) -> EncodedPrompt:
    embed = model.get_input_embeddings().weight
    ids = prompt.token_ids[None].to(embed.device)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for name, value in prompt.model_inputs.items():
        tensor = torch.as_tensor(value).to(embed.device)
        inputs[name] = tensor.to(embed.dtype) if tensor.is_floating_point() else tensor
    arguments = _handed(model, decoder, inputs, f"sample {prompt.sample.id}")
    embeddings = arguments.get("inputs_embeds")
    if not isinstance(embeddings, Tensor):
        raise missing_fact(model.config.model_type, "its language model is not given embeddings")
    more = [name for name, x in arguments.items() if isinstance(x, Tensor | list | tuple) and name not in _USUAL]
    if more:
        raise missing_fact(model.config.model_type, f"its language model is given {', '.join(more)}, too")
    positions = arguments.get("position_ids")
    if positions is None:
        positions = text_positions(embeddings.shape[1], embeddings.device)
    elif positions.ndim == 3:
        positions = positions[:, 0]
    elif int(positions.min()) > 0:
        raise missing_fact(model.config.model_type, f"its positions begin at {int(positions.min())}")
    return EncodedPrompt(embeddings=embeddings[0], positions=positions)


def _count(prompt: Prompt, tokens: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Placeholders of a prompt with media; the model's own forward compares them with its features."""
    ids = prompt.token_ids
    counts = {kind: int(torch.isin(ids, torch.tensor(own)).sum()) for kind, own in tokens.items()}
    has_media = any(torch.as_tensor(x).is_floating_point() for x in prompt.model_inputs.values())
    return {kind: (count or -1) if has_media else 0 for kind, count in counts.items()}
