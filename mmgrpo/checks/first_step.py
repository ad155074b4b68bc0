"""Checks of the first step: two computations that must agree, on the prompts and completions of the run itself.

Each returns what it measured and raises when it is past its bound. They run the real engine, the real packed forward
and the real processor, once per process, also after a resume. They repair nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.config.checks import Checks
from mmgrpo.errors import TrainingError, explain
from mmgrpo.policy.model.lora import without_dropout
from mmgrpo.policy.model.parts import bare_name
from mmgrpo.policy.model.plain import plain_logprobs
from mmgrpo.policy.model.policy import Policy
from mmgrpo.types import Batch, Decoded, Group, Media, Prompt, Sample, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far apart two computations of the same number may be."""

    max_logprob: float
    """Largest difference of one token's log-prob, in nats."""
    mean_logprob: float
    """Mean difference, in nats."""
    gradient: float
    """Norm of the difference of a gradient, relative to the gradient."""


FLOAT32 = Bounds(max_logprob=1e-3, mean_logprob=1e-4, gradient=1e-2)
"""About a hundred times what is measured on a CPU."""
HALF = Bounds(max_logprob=float("inf"), mean_logprob=0.02, gradient=0.25)
"""bfloat16 and float16: single tokens may differ by rounding, their mean may not."""


ENGINE_GROUPS = 8
"""Groups whose log-probs are compared with the engine's."""


def bounds_of(dtype: torch.dtype) -> Bounds:
    """Bounds for a policy of this dtype."""
    return HALF if dtype in (torch.bfloat16, torch.float16) else FLOAT32


def batch_of(groups: Sequence[Group]) -> Batch:
    """Pack groups as they are, for scoring."""
    return Batch(
        segments=tuple(
            Segment(prompt=g.prompt, completions=g.completions, advantages=(0.0,) * len(g.completions)) for g in groups
        )
    )


def check_first_step(
    policy: Policy,
    groups: Sequence[Group],
    encode: Callable[[Sample], Prompt],
    *,
    checks: Checks,
    temperature: float,
) -> dict[str, float]:
    """Run the checks of the first step that are switched on.

    Args:
        policy: The trainer's side.
        groups: Freshly written by the engine under the same weights.
        encode: The run's own processor.
        checks: Which are on.
        temperature: Of the rollout.

    Returns:
        What they measured, by logged name.

    Raises:
        TrainingError: One failed.
    """
    metrics: dict[str, float] = {}
    if checks.engine_logprobs:
        metrics |= check_engine(policy, list(groups)[:ENGINE_GROUPS], temperature=temperature)
    most_informative = max(groups, key=_informative)
    if checks.packed_equals_plain:
        with without_dropout(policy.model):  # else the two passes would drop different numbers
            metrics |= check_packed(policy, most_informative, temperature=temperature)
    if checks.picture_swap:
        metrics |= check_swap(policy, most_informative, encode, temperature=temperature)
    return metrics


def _informative(group: Group) -> tuple[bool, int]:
    """Prefer a group with media, and of those the one with the most tokens after the first of each completion."""
    return bool(group.prompt.media), sum(len(c.token_ids) - 1 for c in group.completions)


def check_engine(policy: Policy, groups: Sequence[Group], *, temperature: float) -> dict[str, float]:
    """The engine's log-probs must be the trainer's.

    Catches: shifted positions, stale weights, another temperature, pictures that one side does not see.

    Args:
        policy: The trainer's side.
        groups: Freshly written by the engine under the same weights.
        temperature: Of the rollout.

    Returns:
        ``checks/engine_logprobs/{mean,max}`` in nats.

    Raises:
        TrainingError: They differ past the bound of the policy's dtype.
    """
    with torch.no_grad():
        trainer = policy.logprobs(batch_of(groups), temperature=temperature).logprobs.cpu().double()
    engine = torch.cat([c.rollout_logprobs for g in groups for c in g.completions]).double()
    return _require_close(
        "engine_logprobs",
        trainer - engine,
        bounds_of(policy.dtype),
        sample=groups[0].prompt.sample,
        what="The engine's log-probs are not the trainer's",
        fix="Engine and trainer see different weights, positions, pictures or temperatures; do not train on this.",
    )


def check_packed(policy: Policy, group: Group, *, temperature: float) -> dict[str, float]:
    """The packed forward must equal plain rows: log-probs of one whole group, and a gradient of each trained part.

    Args:
        policy: The policy.
        group: One prompt and its completions.
        temperature: Of the rollout.

    Returns:
        ``checks/packed_equals_plain/{mean,max}`` in nats and ``…/gradient/{part}``, relative.

    Raises:
        TrainingError: They differ past the bound of the policy's dtype.
    """
    watched = _one_per_part(policy)
    packed = policy.logprobs(batch_of([group]), temperature=temperature).logprobs
    # any fixed weights would do; unequal ones keep tokens and completions from standing in for each other
    weights = torch.cos(torch.arange(len(packed), device=packed.device, dtype=packed.dtype))
    packed_gradient = torch.autograd.grad((packed * weights).sum(), list(watched.values()), allow_unused=True)
    plain, sums = [], [torch.zeros_like(p) for p in watched.values()]
    for completion, part in zip(
        group.completions, weights.split([len(c.token_ids) for c in group.completions]), strict=True
    ):
        row = plain_logprobs(policy.model, policy.family, group.prompt, completion, temperature=temperature)
        gradients = torch.autograd.grad((row * part).sum(), list(watched.values()), allow_unused=True)
        sums = [s if g is None else s + g for s, g in zip(sums, gradients, strict=True)]
        plain.append(row.detach())
    packs = policy.module.layout == "packed"
    message = {
        "sample": group.prompt.sample,
        "what": f"The {'packed forward' if packs else 'forward in rows'} does not equal plain rows",
        "fix": "Set model.layout: rows and report this model; do not train on it packed."
        if packs
        else "Report this model.",
    }
    bounds = bounds_of(policy.dtype)
    metrics = _require_close("packed_equals_plain", packed.detach() - torch.cat(plain), bounds, **message)
    for (name, parameter), g, s in zip(watched.items(), packed_gradient, sums, strict=True):
        error = _relative(torch.zeros_like(parameter) if g is None else g, s)
        metrics[f"checks/packed_equals_plain/gradient/{policy.family.part_of(bare_name(name))}"] = error
        _require_gradient(name, error, bounds, **message)
    return metrics


def _require_gradient(name: str, error: float, bounds: Bounds, *, sample: Sample, what: str, fix: str) -> None:
    if not error <= bounds.gradient:
        raise TrainingError(
            explain(
                f"{what}: the gradient of {name} differs",
                where=f"sample {sample.id}",
                expected=f"at most {bounds.gradient:g} relative",
                got=f"{error:.3g}",
                fix=fix,
            )
        )


def check_swap(
    policy: Policy, group: Group, encode: Callable[[Sample], Prompt], *, temperature: float
) -> dict[str, float]:
    """Another media item of the same size must change the log-probs, or the policy does not see it.

    Args:
        policy: The policy.
        group: One prompt with media, and its completions.
        encode: The run's own processor.
        temperature: Of the rollout.

    Returns:
        ``checks/picture_swap/max``: the largest change of a log-prob, in nats; nothing for a prompt without media.

    Raises:
        TrainingError: Nothing changed beyond the noise of computing the same thing twice.
    """
    if not group.prompt.media:
        return {}
    sample = group.prompt.sample
    other = encode(replace(sample, media=tuple(swapped(m) for m in group.prompt.media)))
    with torch.no_grad():
        once, again, changed = (
            policy.logprobs(batch_of([Group(prompt=p, completions=group.completions)]), temperature=temperature)
            .logprobs.cpu()
            .double()
            for p in (group.prompt, group.prompt, other)
        )
    noise, moved = float((once - again).abs().max()), float((once - changed).abs().max())
    if not moved > max(10 * noise, 1e-6):
        kinds = ", ".join(sorted({m.kind for m in group.prompt.media}))
        raise TrainingError(
            explain(
                f"The policy does not see its {kinds}: another one of the same size changes no log-prob",
                where=f"sample {sample.id}",
                expected=f"a change of more than {max(10 * noise, 1e-6):.1g} nats",
                got=f"{moved:.3g} nats",
                fix="Look at the processor's output for this sample; the encoder's features do not reach the model.",
            )
        )
    return {"checks/picture_swap/max": moved}


def swapped(item: Decoded) -> Media:
    """Another media item of the same kind and size: coloured noise, the video backwards in false colours, other sound.

    A picture in plain grey is nearly its own negative, so pictures are not inverted but replaced by noise.
    """
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    data: Any = item.data
    if item.kind == "image":
        blocks = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        data = Image.fromarray(blocks).resize(data.size, Image.Resampling.NEAREST)
    elif item.kind == "video":
        noise = random.integers(0, 256, (len(data), 1, 1, 3), dtype=np.uint8)
        data = np.ascontiguousarray(data[::-1, ::-1] ^ noise)
    else:
        # quiet speech may be near silence: add noise of a fixed seed, at the loudness of speech
        data = (data[::-1] + 0.1 * random.standard_normal(len(data))).astype(np.float32)
    return Media(kind=item.kind, source=data, rate=item.rate, name=f"another {item.kind}")


def _require_close(
    check: str, difference: Tensor, bounds: Bounds, *, sample: Sample, what: str, fix: str
) -> dict[str, float]:
    mean, largest = float(difference.abs().mean()), float(difference.abs().max())
    if not (mean <= bounds.mean_logprob and largest <= bounds.max_logprob):
        raise TrainingError(
            explain(
                what,
                where=f"sample {sample.id}, check {check}",
                expected=f"at most {bounds.mean_logprob:g} (mean) and {bounds.max_logprob:g} (max) nats apart",
                got=f"{mean:.3g} (mean) and {largest:.3g} (max)",
                fix=fix,
            )
        )
    return {f"checks/{check}/mean": mean, f"checks/{check}/max": largest}


def _one_per_part(policy: Policy) -> Mapping[str, Tensor]:
    """The largest trained matrix of each part: a small one may have a gradient near zero."""
    chosen: dict[str, tuple[str, Tensor]] = {}
    for name, parameter in policy.trainable():
        part = policy.family.part_of(bare_name(name))
        # the A matrices of a fresh adapter have a gradient of exactly zero
        weight = parameter.numel() * (10**6 if ".lora_B." in name else 1)
        best = chosen.get(part)
        if best is None or weight > best[1].numel() * (10**6 if ".lora_B." in best[0] else 1):
            chosen[part] = (name, parameter)
    return dict(chosen.values())


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp(min=1e-12))
