"""From scored groups to the packed micro-batches of each optimizer step.

Decides which completions share a row and what the loss is divided by. Does not know models, losses or devices.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.errors import explain
from mmgrpo.grpo.advantages import check_advantages
from mmgrpo.parallel.strategy import Strategy
from mmgrpo.types import Batch, Completion, OptimizerBatch, Prompt, Sample, ScoredGroup, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTokens:
    """The K completion tokens of a micro-batch, as the loss reads them, S completions end to end."""

    sequence: Int[Tensor, "K"]
    """Which completion (0 to S - 1) a token belongs to."""
    loss_mask: Bool[Tensor, "K"]
    """True where the token is trained."""
    rollout_logprobs: Float[Tensor, "K"]
    """log p when it was sampled, in nats."""
    advantages: Float[Tensor, "K"]
    """Of each token, float64."""
    num_sequences: int
    """S."""

    def to(self, device: torch.device) -> PackedTokens:
        """Copy to a device; advantages become float32 there, since not every device has float64."""
        if device.type == "cpu":
            return self
        return PackedTokens(
            sequence=self.sequence.to(device),
            loss_mask=self.loss_mask.to(device),
            rollout_logprobs=self.rollout_logprobs.to(device),
            advantages=self.advantages.float().to(device),
            num_sequences=self.num_sequences,
        )


def flatten_completions(batch: Batch) -> PackedTokens:
    """Lay the completions of a micro-batch end to end.

    Args:
        batch: A micro-batch with at least one completion.

    Returns:
        Per-token tensors in packed order, on the CPU.
    """
    completions = batch.completions
    lengths = torch.tensor([len(c.token_ids) for c in completions])
    advantages = [torch.as_tensor(a, dtype=torch.float64) for s in batch.segments for a in s.advantages]
    return PackedTokens(
        sequence=torch.repeat_interleave(torch.arange(len(completions)), lengths),
        loss_mask=torch.cat([c.loss_mask.cpu() for c in completions]),
        rollout_logprobs=torch.cat([c.rollout_logprobs.cpu() for c in completions]),
        advantages=torch.cat([a.expand(n) for a, n in zip(advantages, lengths.tolist(), strict=True)]),
        num_sequences=len(completions),
    )


def pack(
    scored: Sequence[ScoredGroup],
    advantages: Sequence[Float[Tensor, "G"] | Sequence[Tensor]],
    *,
    optimizer_steps: int,
    max_batch_tokens: int,
    mask_truncated: bool = False,
    keep_zero: bool = False,
    share_prompts: bool = True,
    dist: Strategy | None = None,
) -> list[OptimizerBatch]:
    """Divide a rollout over its optimizer steps and pack each into micro-batches.

    Groups keep their order and are divided into equal runs, one per optimizer step. A group in which no advantage
    differs from zero has no gradient; it is left out and counted, but its tokens stay in the denominators: leaving it
    out changes nothing but time. A completion without a trained token is in neither.

    Args:
        scored: Groups of the rollout, in order; those that are not local are counted, and learned from elsewhere.
        advantages: Of each group G values, or for each completion a tensor of one value per token.
        optimizer_steps: Optimizer steps that share the rollout (per iteration).
        max_batch_tokens: Tokens per micro-batch as the policy computes them; memory grows with it.
        mask_truncated: Train no token of completions that hit the length limit.
        keep_zero: Keep groups whose advantages are all zero, because a KL or entropy term still moves them.
        share_prompts: Whether the policy computes a prompt once for its completions (the packed layout); else each
            completion counts with its prompt and with padding.
        dist: The ranks that share the step; where their strategy needs it, all get equally many micro-batches.

    Returns:
        One entry per optimizer step.

    Raises:
        TrainingError: An advantage is not finite, or there is not one per completion.

    Warns:
        UserWarning: One completion and its prompt alone exceed ``max_batch_tokens``.
    """
    segments = [_segment(s, a, mask_truncated=mask_truncated) for s, a in zip(scored, advantages, strict=True)]
    bounds = [i * len(segments) // optimizer_steps for i in range(optimizer_steps + 1)]
    local = [s.is_local for s in scored]
    steps = [
        _optimizer_batch(
            segments[start:end], local[start:end], max_batch_tokens, keep_zero=keep_zero, share_prompts=share_prompts
        )
        for start, end in pairwise(bounds)
    ]
    return steps if dist is None or not dist.equal_micro_batches else _pad(steps, segments, dist)


def _pad(steps: list[OptimizerBatch], segments: Sequence[Segment], dist: Strategy) -> list[OptimizerBatch]:
    """Give every rank as many micro-batches in each optimizer step as the rank with the most has.

    A forward pass of sharded weights waits for all ranks. The added micro-batches are one token that is not trained:
    their loss and gradient are exactly 0.
    """
    counts = dist.all_gather([len(step.batches) for step in steps])
    most = [max(of_step) for of_step in zip(*counts, strict=True)]
    if not segments:
        return steps
    empty = Batch(segments=(_untrained_token(segments[0]),))
    return [
        replace(step, batches=step.batches + (empty,) * (count - len(step.batches)))
        for step, count in zip(steps, most, strict=True)
    ]


def _untrained_token(segment: Segment) -> Segment:
    """Make the smallest segment that a policy can read: text alone, since media of other ranks are not here."""
    completion = segment.completions[0]
    token = completion.token_ids[-1:].cpu()
    prompt = Prompt(sample=Sample(id="padding", messages=()), text="", token_ids=token, model_inputs={})
    untrained = Completion(
        token_ids=token,
        rollout_logprobs=torch.zeros(1),
        loss_mask=torch.zeros(1, dtype=torch.bool),
        text="",
        status=completion.status,
        policy_version=completion.policy_version,
    )
    return Segment(prompt=prompt, completions=(untrained,), advantages=(0.0,))


def pack_segments(
    segments: Sequence[Segment], *, max_batch_tokens: int, share_prompts: bool = True
) -> tuple[Batch, ...]:
    """Pack segments into as few micro-batches as first-fit by falling size finds.

    A segment that exceeds the budget is split over several micro-batches, its prompt repeated. The result depends
    on the segments and the budget only.

    Args:
        segments: What to pack; the order breaks ties.
        max_batch_tokens: Tokens per micro-batch, at least 1.
        share_prompts: Whether a prompt counts once for its completions; else each completion is a row of its prompt
            and itself, padded to the longest row of the micro-batch.

    Returns:
        Micro-batches in the order of their first segment.

    Warns:
        UserWarning: One completion and its prompt alone exceed the budget; it gets a micro-batch of its own.
    """
    if any(_length(s.prompt) + _length(c) > max_batch_tokens for s in segments for c in s.completions):
        # No sizes in the text: Python shows one text once, and this is one fact about the run.
        message = explain(
            "A prompt with one completion is longer than a micro-batch may be; it is computed alone",
            where="train.max_batch_tokens",
            expected=f"at most {max_batch_tokens} tokens",
            fix="Raise train.max_batch_tokens if memory allows, or shorten prompts, pictures or completions.",
        )
        warnings.warn(message, stacklevel=3)
    if not share_prompts:
        return _pack_rows(segments, max_batch_tokens)
    pieces = [piece for segment in segments for piece in _split(segment, max_batch_tokens)]
    bins = _first_fit([_tokens(piece) for piece in pieces], max_batch_tokens)
    return tuple(Batch(segments=tuple(pieces[i] for i in members)) for members in bins)


def _pack_rows(segments: Sequence[Segment], max_batch_tokens: int) -> tuple[Batch, ...]:
    """Fill micro-batches with rows of one prompt and completion each, the longest first: so padding is small."""
    sizes = {
        (i, j): _length(segment.prompt) + _length(completion)
        for i, segment in enumerate(segments)
        for j, completion in enumerate(segment.completions)
    }
    bins: list[list[tuple[int, int]]] = []
    for row in sorted(sizes, key=lambda row: (-sizes[row], row)):
        if bins and (len(bins[-1]) + 1) * sizes[bins[-1][0]] <= max_batch_tokens:
            bins[-1].append(row)
        else:
            bins.append([row])
    batches = []
    for rows in sorted(sorted(rows) for rows in bins):
        members = {i: [j for other, j in rows if other == i] for i, _ in rows}
        batches.append(Batch(segments=tuple(_choose(segments[i], chosen) for i, chosen in members.items())))
    return tuple(batches)


def sample_names(batch: Batch, limit: int = 8) -> str:
    """List the sample ids of a micro-batch for an error, the first few by name."""
    ids = list(dict.fromkeys(segment.prompt.sample.id for segment in batch.segments))
    more = f" and {len(ids) - limit} more" if len(ids) > limit else ""
    return "samples " + ", ".join(ids[:limit]) + more


def _segment(scored: ScoredGroup, advantages: Tensor | Sequence[Tensor], *, mask_truncated: bool) -> Segment:
    """Join a group with its advantages; 0 where no reward applies."""
    prompt, completions = scored.group.prompt, scored.group.completions
    values = check_advantages(scored, advantages)
    if mask_truncated:
        completions = tuple(_untrained(c) if c.status == "length" else c for c in completions)
    return Segment(prompt=prompt, completions=completions, advantages=values)


def _untrained(completion: Completion) -> Completion:
    return replace(completion, loss_mask=torch.zeros_like(completion.loss_mask))


def _optimizer_batch(
    segments: Sequence[Segment],
    local: Sequence[bool],
    max_batch_tokens: int,
    *,
    keep_zero: bool,
    share_prompts: bool,
) -> OptimizerBatch:
    """Count every trained token, then pack what has a gradient and is learned from here."""
    trained = [_without_untrained(s) for s in segments]
    moves = [bool(s.completions) and (keep_zero or _has_advantage(s)) for s in trained]
    here = [s for s, moving, is_local in zip(trained, moves, local, strict=True) if moving and is_local]
    return OptimizerBatch(
        batches=pack_segments(here, max_batch_tokens=max_batch_tokens, share_prompts=share_prompts),
        num_tokens=sum(int(c.loss_mask.sum()) for s in trained for c in s.completions),
        num_sequences=sum(len(s.completions) for s in trained),
        num_skipped_groups=len(segments) - sum(moves),
        learns=any(moves),
    )


def _has_advantage(segment: Segment) -> bool:
    return any(bool((torch.as_tensor(advantage) != 0).any()) for advantage in segment.advantages)


def _without_untrained(segment: Segment) -> Segment:
    """Drop completions without any trained token: the longest ones, often, and they would be computed for nothing."""
    kept = [i for i, c in enumerate(segment.completions) if bool(c.loss_mask.any())]
    return _choose(segment, kept)


def _choose(segment: Segment, indices: Sequence[int]) -> Segment:
    return replace(
        segment,
        completions=tuple(segment.completions[i] for i in indices),
        advantages=tuple(segment.advantages[i] for i in indices),
    )


def _tokens(segment: Segment) -> int:
    return _length(segment.prompt) + sum(_length(c) for c in segment.completions)


def _length(part: Prompt | Completion) -> int:
    return len(part.token_ids)


def _split(segment: Segment, max_batch_tokens: int) -> list[Segment]:
    """Cut a segment that exceeds the budget into pieces that repeat its prompt, as few as first-fit finds."""
    if _tokens(segment) <= max_batch_tokens:
        return [segment]
    room = max_batch_tokens - _length(segment.prompt)
    return [_choose(segment, members) for members in _first_fit([_length(c) for c in segment.completions], room)]


def _first_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """First-fit by falling size; what exceeds the capacity stands alone. Members and bins in index order."""
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        fit = next((b for b, free in enumerate(room) if sizes[index] <= free), len(bins))
        if fit == len(bins):
            bins.append([])
            room.append(capacity)
        bins[fit].append(index)
        room[fit] -= sizes[index]
    return sorted(sorted(members) for members in bins)
