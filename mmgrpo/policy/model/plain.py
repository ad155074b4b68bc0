"""The plain forward: one prompt and one completion in one row, as anyone would call the model.

It shares no code with the packed forward, and goes through transformers' own forward from token ids to logits: the
run checks and the tests compare the two. Slow on purpose.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.policy.families.spec import FamilySpec
from mmgrpo.types import Completion, Prompt


def plain_inputs(family: FamilySpec, prompt: Prompt, completion: Completion, device: torch.device) -> dict[str, Any]:
    """Arguments of ``model(**inputs)`` for one row: the processor's keys as they are, per-token keys made longer."""
    ids = torch.cat([prompt.token_ids, completion.token_ids.to(prompt.token_ids.device)])[None]
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for name, value in prompt.model_inputs.items():
        tensor = torch.as_tensor(value)
        if family.keys.get(name) == "tokens":
            tensor = torch.nn.functional.pad(tensor.reshape(1, -1), (0, len(completion.token_ids)))
        inputs[name] = tensor
    return {name: value.to(device) for name, value in inputs.items()}


def plain_logprobs(
    model: Any, family: FamilySpec, prompt: Prompt, completion: Completion, *, temperature: float
) -> Float[Tensor, "C"]:
    """Log-probs of one completion by the model's own forward.

    Args:
        model: The transformers model.
        family: Its record.
        prompt: The prompt, with its media.
        completion: What to score.
        temperature: Of the rollout.

    Returns:
        log p of each completion token, in nats, float32 (float64 stays); differentiable.
    """
    device = model.get_input_embeddings().weight.device
    base = getattr(model, "model", None)
    if hasattr(base, "rope_deltas"):
        base.rope_deltas = None  # of the prompt before; transformers would add it to this one's positions
    inputs = plain_inputs(family, prompt, completion, device)
    positions = family.row_positions(model, prompt, len(completion.token_ids))
    if positions is not None:
        inputs["position_ids"] = positions.to(device)
    logits = model(**inputs, use_cache=False).logits[0]
    if hasattr(base, "rope_deltas"):
        base.rope_deltas = None
    length = len(completion.token_ids)
    rows = logits[-length - 1 : -1]
    rows = (rows if rows.dtype == torch.float64 else rows.float()) / temperature
    ids = completion.token_ids.to(device)
    return torch.log_softmax(rows, dim=-1).gather(-1, ids[:, None]).squeeze(-1)
