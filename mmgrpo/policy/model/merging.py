"""Folding adapters into the base: the weights that an engine or anyone else loads without peft.

Nothing here changes the policy: weights are added up into new tensors. Does not know how a run folder is laid out
beyond where its checkpoints keep the policy.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.errors import CheckpointError, explain
from mmgrpo.policy.model.checkpoint import find_policy_folder, settings_of
from mmgrpo.policy.model.loading import choose_dtype
from mmgrpo.policy.model.lora import fraction_kept
from mmgrpo.policy.model.policy import Policy, load_policy

MIN_FRACTION_KEPT = 0.95
"""A merge that rounds more of the adapter away is told."""


def merge_adapter(source: Policy | Path | str, out: Path | str, *, dtype: str = "auto") -> Path:
    """Write a plain transformers folder in which the adapter is part of the weights, with the processor.

    W = W_base + scale * B A for every adapted layer. Where an adapter moved the embeddings and the LM head apart, the
    folder's config says that they are not tied.

    Args:
        source: A policy, or a folder: a run, a checkpoint, or the policy's folder in it.
        out: Where to write; must be empty or not there.
        dtype: Of the merged weights: auto (that of the base), float32, bfloat16 or float16. What a small adapter adds
            may be lost in rounding to a half precision; a warning says how much.

    Returns:
        ``out``.

    Raises:
        CheckpointError: There is no policy in the folder, or ``out`` is in use.
        ConfigError: The base model cannot be loaded.
    """
    out = Path(out)
    if out.exists() and any(out.iterdir()):
        raise CheckpointError(
            explain("The folder for the merged model is not empty", where=str(out), fix="Name another folder.")
        )
    policy = source if isinstance(source, Policy) else load_policy(settings_of(find_policy_folder(Path(source))))
    wanted = policy.dtype if dtype == "auto" else choose_dtype(dtype, policy.device)
    kept = fraction_kept(policy.model, wanted)
    if kept < MIN_FRACTION_KEPT:
        warnings.warn(
            explain(
                "Rounding loses a part of what the adapter adds",
                where=str(out),
                got=f"{kept:.0%} of the weights that it moves are moved in {str(wanted).removeprefix('torch.')}",
                fix="Merge in float32 (dtype: float32), or load base and adapter.",
            ),
            stacklevel=2,
        )
    plain = merged_model(policy, dtype=wanted)
    plain.save_pretrained(out)
    policy.processor.save_pretrained(out)
    return out


def merged_model(policy: Policy, *, dtype: torch.dtype | None = None) -> Any:
    """Build a plain model of the policy's class around the merged weights, which it shares where nothing changed."""
    weights = dict(policy.named_weights(dtype=dtype))
    config = copy.deepcopy(policy.model.config)
    config.dtype = dtype or policy.dtype
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights below are whole again
    if not _still_tied(policy.model, weights):
        for part in (config, getattr(config, "text_config", None)):
            if part is not None:
                part.tie_word_embeddings = False
    with torch.device("meta"):
        plain = type(policy.model)(config)
    plain.load_state_dict(weights, assign=True)
    plain.generation_config = copy.deepcopy(policy.model.generation_config)
    return plain


def _still_tied(model: nn.Module, weights: dict[str, Tensor]) -> bool:
    tied: Any = getattr(model, "_tied_weights_keys", None) or {}
    if not isinstance(tied, dict) or not getattr(model.config, "tie_word_embeddings", False):
        return True  # what was not tied has nothing to lose
    pairs = [(weights.get(target), weights.get(origin)) for target, origin in tied.items()]
    return all(a is None or b is None or torch.equal(a, b) for a, b in pairs)
