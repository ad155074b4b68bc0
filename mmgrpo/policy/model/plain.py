"""The plain forward: one prompt and one completion in one row, as anyone would call the model.

It shares no code with the packed forward, and goes through transformers' own forward from token ids to logits: the
run checks and the tests compare the two, and so does the self-check of a family without a record. Slow on purpose.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from mmgrpo.errors import ConfigError, MmgrpoError, explain
from mmgrpo.media.prompts import PromptBuilder
from mmgrpo.policy.families.generic import missing_fact
from mmgrpo.policy.families.spec import FamilySpec
from mmgrpo.types import Batch, Completion, Media, Prompt, Sample, Segment

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Largest difference of log-probs in the self-check, in nats; half precision: 0.1."""


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


def check_generic(policy: Any) -> None:
    """Compare a policy under the generic record with its model's own forward, on made-up prompts.

    Args:
        policy: The policy.

    Raises:
        ConfigError: Log-probs differ, or another image changes nothing; it says which fact is missing.
    """
    spec = policy.family
    try:
        prompts, batch = _probe(policy)
        with torch.no_grad():
            found = policy.logprobs(batch, temperature=1.0).logprobs
            expected = torch.cat(
                [
                    plain_logprobs(policy.model, spec, segment.prompt, completion, temperature=1.0)
                    for segment in batch.segments
                    for completion in segment.completions
                ]
            )
    except ConfigError:
        raise
    except (MmgrpoError, ValueError, RuntimeError, TypeError, KeyError, AttributeError) as error:
        raise missing_fact(spec.name, f"a made-up prompt fails: {str(error).strip().splitlines()[0]}") from error
    error = float((found - expected).abs().max())
    if not error <= TOLERANCE.get(policy.dtype, 0.1):
        raise missing_fact(
            spec.name,
            f"log-probs are {error:.2g} nats from the model's own forward: its language model reads a prompt with a "
            "mask or positions of its own",
        )
    if spec.kinds and torch.equal(*(found[i : i + 3] for i in (0, len(found) // 2))):
        raise missing_fact(spec.name, "another image in the prompt changes no log-prob")
    warnings.warn(
        explain(
            f"No family record for {spec.name!r}: the generic one is used, which fits",
            where="model.name",
            expected=f"log-probs of the model's own forward; {len(prompts)} prompts agree to {error:.1g} nats",
            fix="A record of its own (docs/families.md) may share each prompt over its group, which is faster.",
        ),
        stacklevel=3,
    )


def _probe(policy: Any) -> tuple[list[Prompt], Any]:
    builder = PromptBuilder(policy.processor, family=policy.family_info)
    random = np.random.default_rng(0)
    prompts = []
    for number in range(2):
        text = {"type": "text", "text": "How many objects are there?"}
        media, content = (), "How many objects are there?"
        if policy.family.kinds:
            pixels = random.integers(0, 256, (96, 128, 3), dtype=np.uint8)
            media, content = (Media(kind="image", source=Image.fromarray(pixels)),), [{"type": "image"}, text]
        sample = Sample(id=f"probe {number}", messages=({"role": "user", "content": content},), media=media)
        prompts.append(builder.build_prompt(sample))
    ids = prompts[0].token_ids[-3:]
    completions = tuple(
        Completion(
            token_ids=ids[:length],
            rollout_logprobs=torch.zeros(length),
            loss_mask=torch.ones(length, dtype=torch.bool),
            text="",
            status="length",
            policy_version=0,
        )
        for length in (3, 2)
    )
    segments = tuple(Segment(prompt=p, completions=completions, advantages=(0.0, 0.0)) for p in prompts)
    return prompts, Batch(segments=segments)
