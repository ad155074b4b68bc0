"""The nouns: what one stage hands to the next.

Frozen dataclasses; a later stage is a later type, so no field is "not yet there". ``None`` means "there is none".
Letters in shapes: N prompts, G completions of a prompt, P prompt tokens, C completion tokens.

This module does not know how any of these is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.errors import TrainingError, explain

MediaKind = Literal["image", "audio", "video"]
Status = Literal["stop", "length"]
"""How a completion ended: with an end token or a stop string, or at the limit of its length."""
Author = Literal["policy", "environment"]
Message = Mapping[str, Any]
"""``{"role": ..., "content": str | list of blocks}``; a block is ``{"type": "text", "text": ...}`` or a placeholder
``{"type": "image" | "audio" | "video"}`` that stands for the next medium of that kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """One medium as a row names it, not yet decoded."""

    kind: MediaKind
    source: Any
    """A path, bytes, an array or a PIL picture."""
    rate: float | None = None
    """Sampling rate in Hz (audio) or frames per second (video), where the source does not carry it itself."""
    name: str = ""
    """How messages call it: its path, or where it came from ("row 3, column image")."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings that the row gives beside it, read-only, by the row's own names (``fps``, ``video_start``,
    ``max_pixels``, …); whoever decodes it follows each, or refuses it by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One medium as an array with its rate: the very object that processor, engine, trainer and rewards share."""

    kind: MediaKind
    data: Any
    """An RGB PIL picture, float32 ``[samples]`` mono (audio), or uint8 ``[frames, height, width, 3]`` (video)."""
    rate: float | None = None
    """Hz (audio) or frames per second of the frames that are here (video); None for pictures."""
    times: tuple[float, ...] = ()
    """When each frame of a video was shown, in seconds from its first; empty for pictures and audio."""
    name: str = ""
    """As in :class:`Media`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One row of the data, in the one form that the rest of the house knows."""

    id: str
    """Unique in its source, and stable between runs: used in messages, logs and evaluation files."""
    messages: tuple[Message, ...]
    """The conversation up to where the policy answers."""
    media: tuple[Media, ...] = ()
    """In the order of their placeholders in ``messages``."""
    answer: Any = None
    """The truth that rewards compare with; None where the data has none."""
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Every other column of the row, handed to rewards by name."""
    controls_as_text: bool = False
    """Whether the model reads control tokens in the row's texts as letters, and not as its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A sample as the policy reads it."""

    sample: Sample
    text: str
    """The rendered chat template, with one placeholder per medium, before the processor expands it."""
    token_ids: Int[Tensor, "P"]
    """With placeholders expanded: one id per encoder feature."""
    model_inputs: Mapping[str, Any]
    """What the processor returned beside the token ids. Opaque outside ``policy/families``."""
    media: tuple[Decoded, ...] = ()
    """The decoded media, in order; rewards get these very objects."""
    draw_index: int = 0
    """How many prompts the run had drawn before this one: two draws of one row differ here, and only here."""
    prefill: str = ""
    """What the template already wrote of the answer (``<think>``): rewards read it before the completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens of a completion that follow each other and have one author."""

    num_tokens: int
    """At least one."""
    author: Author = "policy"
    """Who wrote them: tokens of the policy are trained, those of an environment (a tool's answer) are only read."""
    policy_version: int | None
    """Weight updates of the policy that wrote them; None for an environment's."""
    media: tuple[Decoded, ...] = ()
    """Media whose placeholders stand in these tokens, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer of the policy: a sequence of spans, and usually a single one of the policy.

    Tensors run over all spans, so the usual completion costs what its tokens cost.

    Raises:
        ValueError: The spans do not cover the tokens, or tokens of an environment are trained.

    Example:
        >>> import torch
        >>> tokens, trained = torch.tensor([5, 6, 7]), torch.tensor([True, False, True])
        >>> turns = (
        ...     Span(num_tokens=1, policy_version=2),
        ...     Span(num_tokens=1, author="environment", policy_version=None),
        ...     Span(num_tokens=1, policy_version=3),
        ... )
        >>> written = Completion(
        ...     token_ids=tokens, rollout_logprobs=torch.zeros(3), loss_mask=trained, text="a", status="stop",
        ...     policy_version=3, spans=turns,
        ... )
        >>> [span.policy_version for span in written.spans]
        [2, None, 3]
    """

    token_ids: Int[Tensor, "C"]
    """At least one; the end token is included when ``status`` is "stop"."""
    rollout_logprobs: Float[Tensor, "C"]
    """log p of each token when it was sampled, in nats, at the sampling temperature, before any truncation; 0 for
    tokens that an environment wrote."""
    loss_mask: Bool[Tensor, "C"]
    """True where the token is trained."""
    text: str
    """Decoded, without the end token."""
    status: Status
    policy_version: int
    """Weight updates of the policy that wrote the newest of its spans."""
    spans: tuple[Span, ...] = ()
    """In order, over all tokens; left out: one of the policy."""

    def __post_init__(self) -> None:
        """Fill in the usual span, or check those that are given."""
        if not self.spans:
            whole = Span(num_tokens=len(self.token_ids), policy_version=self.policy_version)
            object.__setattr__(self, "spans", (whole,))
            return
        ends = [0]
        for span in self.spans:
            ends.append(ends[-1] + span.num_tokens)
        if ends[-1] != len(self.token_ids) or any(span.num_tokens < 1 for span in self.spans):
            raise ValueError(f"Spans of {ends[-1]} tokens do not cover a completion of {len(self.token_ids)}.")
        for span, start, end in zip(self.spans, ends, ends[1:], strict=False):
            if span.author == "environment" and bool(self.loss_mask[start:end].any()):
                raise ValueError(f"Tokens {start} to {end - 1} were written by an environment and cannot be trained.")

    @property
    def media(self) -> tuple[Decoded, ...]:
        """Media that came back while it was written (from a tool or renderer); usually none."""
        return tuple(item for span in self.spans for item in span.media)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One prompt and its G completions."""

    prompt: Prompt
    completions: tuple[Completion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """A group and what the rewards said of it."""

    group: Group
    totals: Float[Tensor, "G"]
    """Weighted sum over the rewards, float64; NaN where no reward applies."""
    rewards: Mapping[str, Float[Tensor, "G"]]
    """Each reward's own value by name, unweighted, float64; NaN where it does not apply."""
    extra: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    """What rewards logged beside their values (``log_extra``), by name: one value per completion."""
    is_local: bool = True
    """Whether this rank rolled it out, and so learns from it; groups of other ranks are only compared and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One prompt with some (usually all) of its completions, as it stands in a packed row."""

    prompt: Prompt
    completions: tuple[Completion, ...]
    advantages: tuple[float | Float[Tensor, "C"], ...]
    """Of each completion one number, or one per token."""

    def __post_init__(self) -> None:
        """Refuse what the packed forward would drop without a word.

        Raises:
            TrainingError: A completion holds media: its tokens would be read without them.
        """
        for completion in self.completions:
            if completion.media:
                raise TrainingError(
                    explain(
                        "Media inside a completion cannot be trained on",
                        where=f"sample {self.prompt.sample.id}",
                        expected="completions of text tokens",
                        got=f"{', '.join(item.kind for item in completion.media)} inside one",
                        fix="Use an engine or environment that answers in text.",
                    )
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A packed micro-batch: ``[P1 | R1,1 … R1,G | P2 | R2,1 …]``, each prompt once and no padding.

    Tokens of completions, flattened in this order, are the K axis of every per-token tensor.
    """

    segments: tuple[Segment, ...]

    @property
    def num_tokens(self) -> int:
        """T, the length of the packed row in tokens."""
        return sum(len(s.prompt.token_ids) + sum(len(c.token_ids) for c in s.completions) for s in self.segments)

    @property
    def completions(self) -> list[Completion]:
        """All completions in packed order (the S axis)."""
        return [c for s in self.segments for c in s.completions]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerBatch:
    """The micro-batches of one optimizer step, with the denominators that all of them share.

    The counts cover every completion of the step, also those of groups that were not packed because their gradient
    is exactly zero: leaving a group out changes nothing but time.
    """

    batches: tuple[Batch, ...]
    """Those of this process; may be empty."""
    num_tokens: int
    """Tokens with ``loss_mask`` True, over all micro-batches and processes."""
    num_sequences: int
    """Completions with at least one such token."""
    num_skipped_groups: int = 0
    """Groups left out because all their advantages are zero."""
    learns: bool
    """Whether there is a micro-batch in any process; False: then the optimizer step is skipped, and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """What one call of ``update`` did, reduced over micro-batches and optimizer steps."""

    metrics: Mapping[str, float]
    """By logged name: ``loss``, ``kl``, ``entropy``, ``clip_ratio/low_mean``, ``grad_norm``, ``learning_rate``, …"""
    optimizer_steps: int
    """Optimizer steps that changed the weights."""
    skipped_optimizer_steps: int
    """Optimizer steps without any gradient."""
    num_tokens: int
    """Packed tokens computed, prompts counted once."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How completions are drawn. Nothing of the checkpoint's generation defaults is merged in silently."""

    max_completion_length: int
    """In tokens, the end token included."""
    temperature: float = 1.0
    """0 means greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and completion tokens; 1 means none."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion; the stop string itself stays in the text."""
    seed: int = 0
    stream: str = "train"
    """Which family of random streams to draw from: training and evaluation never share one."""
