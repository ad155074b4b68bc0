"""The packed forward, head included: log-probs of every completion token, each prompt computed once.

One ``nn.Module``, so that a sharded model gathers its weights where they are used; nobody else touches the LM head.
Three stages: the encoders (whose output is cached while nothing that makes it learns), the language model over a
packed row, and the head, which never holds ``[K, V]`` logits. It knows a family only through its record, and nothing
of rewards or losses.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmgrpo.grpo.logprobs import chosen_logprobs, entropy_of, log_distribution
from mmgrpo.policy.attention.interface import AttentionPlan, build_plan, one_element_mask
from mmgrpo.policy.attention.layout import (
    Span,
    batch_lengths,
    completion_index,
    completion_offsets,
    completion_segment,
    predictor_index,
    prompt_index,
    spans_of,
)
from mmgrpo.policy.families.spec import EncodedPrompt, FamilySpec, Layout, LoadedFamily, PlacedPrompt
from mmgrpo.policy.model.parts import bare_name
from mmgrpo.policy.patches import decoder_of
from mmgrpo.types import Batch, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """What the policy says of each completion token of a batch, in packed order."""

    logprobs: Float[Tensor, "K"]
    """log p(token | everything before it) at the rollout's temperature, in nats, float32; 0 where not trained."""
    entropy: Float[Tensor, "K"] | None
    """Of the distribution that the token was drawn from, in nats; None if not asked for."""


def _chunk_logprobs(
    hidden: Float[Tensor, "k D"],
    token_ids: Int[Tensor, "k"],
    head: Callable[[Tensor], Tensor],
    temperature: float,
    entropies: list[Tensor] | None,
) -> Float[Tensor, "k"]:
    """Log-probs of a chunk; its entropy goes to the list if that is empty: the pass in backward adds none."""
    every = log_distribution(head(hidden), temperature=temperature)
    if entropies is not None and not entropies:
        entropies.append(entropy_of(every.detach()))
    return chosen_logprobs(every, token_ids)


def head_stats(
    hidden: Float[Tensor, "K D"],
    token_ids: Int[Tensor, "K"],
    head: Callable[[Tensor], Tensor],
    *,
    temperature: float,
    chunk: int,
    entropy: bool = False,
) -> tuple[Float[Tensor, "K"], Float[Tensor, "K"] | None]:
    """Log-probs of ``token_ids`` under ``softmax(head(hidden) / temperature)``.

    logprobs[t] = log p[t, token_ids[t]],  p = softmax(logits / T)
    entropy[t]  = -sum over v of p[t, v] log p[t, v]

    Args:
        hidden: Hidden states that predict a token.
        token_ids: The tokens they predict.
        head: Hidden states to logits, with all that the family does after its head.
        temperature: Of the rollout, above 0.
        chunk: Rows per pass; held memory grows with it.
        entropy: Also measure the entropy.

    Returns:
        Log-probs and entropy in nats, float32 (float64 stays). No gradient flows through the entropy: it is computed
        once, and backward does not pay for it.
    """
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for start in range(0, len(token_ids), chunk):
        part = slice(start, start + chunk)
        measured: list[Tensor] | None = [] if entropy else None
        arguments = (hidden[part], token_ids[part], head, temperature, measured)
        if torch.is_grad_enabled():
            logprobs.append(checkpoint(_chunk_logprobs, *arguments, use_reentrant=False))
        else:
            logprobs.append(_chunk_logprobs(*arguments))
        entropies += measured or []
    if not logprobs:
        empty = hidden.new_zeros(0).float()
        return empty, (empty if entropy else None)
    return torch.cat(logprobs), (torch.cat(entropies) if entropy else None)


@dataclass(frozen=True, slots=True)
class _CachedFeatures:
    """Features of one prompt, and what they were made of."""

    encoded: EncodedPrompt
    inputs: dict[str, Any]
    """By the processor's key: a tensor as a weak reference with its version, anything else as text."""
    weights: tuple[int, int]
    size: int


class FeatureCache:
    """Keeps what the encoders made of prompts that are still in use."""

    def __init__(self, max_bytes: int) -> None:
        """Start empty.

        Args:
            max_bytes: Held on the policy's device at the most; what comes beyond it is computed each time.
        """
        self._max_bytes = max_bytes
        self._entries: dict[int, _CachedFeatures] = {}
        self.held_bytes = 0
        """What is held now."""

    def encode(
        self,
        model: nn.Module,
        family: FamilySpec,
        prompts: Sequence[Prompt],
        run: Callable[[Sequence[Prompt]], list[EncodedPrompt]],
    ) -> list[EncodedPrompt]:
        """Give the features of prompts, computing those that are not held.

        Args:
            model: Whose encoders and embeddings.
            family: Its record.
            prompts: In order.
            run: Encodes prompts, all in one call.

        Returns:
            One entry per prompt; with a weight that learns all are computed.
        """
        if not self._max_bytes or encoders_learn(model, family):
            return run(prompts)
        weights = _stamp(encoder_weights(model, family))
        cached = [self._lookup(prompt, weights) for prompt in prompts]
        missing = [prompt for prompt, held in zip(prompts, cached, strict=True) if held is None]
        if missing:
            with torch.inference_mode(False), torch.no_grad():  # what is cached must be usable under autograd
                made = iter(run(missing))
            pairs = zip(prompts, cached, strict=True)
            return [held or self._store(prompt, next(made), weights) for prompt, held in pairs]
        return [held for held in cached if held is not None]

    def _lookup(self, prompt: Prompt, weights: tuple[int, int]) -> EncodedPrompt | None:
        entry = self._entries.get(id(prompt.token_ids))
        same = entry is not None and entry.weights == weights and _unchanged(entry.inputs, prompt)
        return entry.encoded if entry is not None and same else None

    def _store(self, prompt: Prompt, encoded: EncodedPrompt, weights: tuple[int, int]) -> EncodedPrompt:
        key, size = id(prompt.token_ids), _size(encoded)
        self._drop(key)
        if self.held_bytes + size <= self._max_bytes:
            self._entries[key] = _CachedFeatures(encoded, _snapshot(prompt), weights, size)
            self.held_bytes += size
            weakref.finalize(prompt.token_ids, self._drop, key).atexit = False
        return encoded

    def _drop(self, key: int) -> None:
        entry = self._entries.pop(key, None)
        self.held_bytes -= entry.size if entry else 0


def encoders_learn(model: nn.Module, family: FamilySpec) -> bool:
    """Tell whether a weight learns that prompts are encoded with: of an encoder, a projector or the embeddings."""
    return any(weight.requires_grad for weight in encoder_weights(model, family))


def encoder_weights(model: nn.Module, family: FamilySpec) -> list[nn.Parameter]:
    """Give all weights that prompts are encoded with.

    Args:
        model: The policy's model.
        family: Its record.
    """
    parts = [w for name, w in model.named_parameters() if family.part_of(bare_name(name)) != "language"]
    return [*parts, *model.get_input_embeddings().parameters()]  # type: ignore[operator]


def _stamp(weights: Iterable[nn.Parameter]) -> tuple[int, int]:
    """Sum up where weights stand and how often they were written: another sum is another encoder."""
    versions = places = 0
    for weight in weights:
        versions, places = versions + weight._version, places + weight.data_ptr()
    return versions, places


def _snapshot(prompt: Prompt) -> dict[str, Any]:
    inputs = {"input_ids": prompt.token_ids, **prompt.model_inputs}
    return {
        name: (weakref.ref(value), value._version) if isinstance(value, Tensor) else repr(value)
        for name, value in inputs.items()
    }


def _unchanged(snapshot: dict[str, Any], prompt: Prompt) -> bool:
    """Whether these are the very tensors of before, not written to since."""
    inputs = {"input_ids": prompt.token_ids, **prompt.model_inputs}
    if snapshot.keys() != inputs.keys():
        return False
    for name, value in inputs.items():
        before = snapshot[name]
        if isinstance(value, Tensor):
            if not isinstance(before, tuple) or before[0]() is not value or before[1] != value._version:
                return False
        elif before != repr(value):
            return False
    return True


def _size(encoded: EncodedPrompt) -> int:
    return sum(tensor.nbytes for tensor in (encoded.embeddings, encoded.positions, *encoded.extras.values()))


class PackedForward(nn.Module):
    """The policy's forward over packed rows, and over rows of one prompt and completion each where it must be."""

    def __init__(self, model: Any, family: FamilySpec, *, layout: Layout, chunk: int) -> None:
        super().__init__()
        self.model = model
        self.family = family
        self.layout = layout
        self.chunk = chunk
        self.check_media = True
        """Compare placeholders with features before each forward (``checks.media_count``)."""
        self.feature_cache: FeatureCache | None = None
        """Keeps what frozen encoders made; None: they run in each pass."""

    @property
    def decoder(self) -> Any:
        """The language model: embeddings in, hidden states out."""
        return decoder_of(self.model, self.family.decoder)

    @property
    def device(self) -> torch.device:
        """Where inputs go."""
        return self.model.get_input_embeddings().weight.device

    def head(self, hidden: Float[Tensor, "K D"]) -> Float[Tensor, "K V"]:
        """Logits of hidden states, with all that the family does after its head."""
        logits = self.model.get_output_embeddings()(hidden)
        finish = self.family.finish_logits
        return logits if finish is None else finish(logits, self.model.config)

    def encode_media(self, prompts: Sequence[Prompt]) -> list[EncodedPrompt]:
        """Run the encoders, once per prompt, or take what frozen ones made of it before.

        Raises:
            ProcessorError: Placeholders and features of a prompt do not match.
        """
        if self.check_media:
            LoadedFamily(spec=self.family, config=self.model.config).check_media_count(prompts)
        cache = self.feature_cache
        return self._encode(prompts) if cache is None else cache.encode(self.model, self.family, prompts, self._encode)

    def _encode(self, prompts: Sequence[Prompt]) -> list[EncodedPrompt]:
        return self.family.encode(self.model, prompts)

    def forward(self, batch: Batch, *, temperature: float, entropy: bool = False) -> TokenStats:
        """Log-probs (and entropy) of every completion token of a micro-batch.

        Args:
            batch: Segments in packed order.
            temperature: Of the rollout.
            entropy: Also compute the entropy.

        Returns:
            Per-token statistics, K values each.
        """
        encoded = self.encode_media([s.prompt for s in batch.segments])
        targets = torch.cat([c.token_ids for c in batch.completions]).to(self.device)
        spans = spans_of(batch_lengths(batch))
        hidden = (
            self._packed_hidden(encoded, targets, spans)
            if self.layout == "packed"
            else self._unpacked_hidden(encoded, targets, spans)
        )
        logprobs, h = head_stats(
            hidden, targets, self.head, temperature=temperature, chunk=self.chunk, entropy=entropy
        )
        trained = torch.cat([c.loss_mask for c in batch.completions]).to(logprobs.device)
        return TokenStats(logprobs=logprobs.masked_fill(~trained, 0.0), entropy=h)

    def language(
        self,
        embeddings: Float[Tensor, "B L D"],
        positions: Int[Tensor, "A B L"],
        placed: Sequence[PlacedPrompt] = (),
        **arguments: Any,
    ) -> Float[Tensor, "B L D"]:
        """Call the language model: hidden states after its last norm."""
        output = self.decoder(
            inputs_embeds=embeddings,
            position_ids=positions if self.family.axes > 1 else positions[0],
            **self.family.language_inputs(placed, tuple(embeddings.shape[:2])),
            **arguments,
        )
        return output.last_hidden_state

    def packed_language(
        self,
        embeddings: Float[Tensor, "T D"],
        positions: Int[Tensor, "A T"],
        plan: AttentionPlan,
        placed: Sequence[PlacedPrompt] = (),
    ) -> Float[Tensor, "T D"]:
        """Call the language model on one packed row whose attention follows a plan."""
        mask = one_element_mask(embeddings.device)
        hidden = self.language(
            embeddings[None], positions[:, None], placed, attention_mask=mask, use_cache=False, plan=plan
        )
        return hidden[0]

    def _packed_hidden(
        self, encoded: list[EncodedPrompt], targets: Int[Tensor, "K"], spans: tuple[Span, ...]
    ) -> Float[Tensor, "K D"]:
        device = self.device
        order = torch.cat([prompt_index(spans), completion_index(spans)])
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        place = place.to(device)
        answers = self.model.get_input_embeddings()(targets)
        embeddings = torch.cat([*(e.embeddings for e in encoded), answers]).index_select(0, place)
        positions = torch.cat([*(e.positions for e in encoded), self._continued(encoded, spans)], 1)[:, place]
        placed = [PlacedPrompt(encoded=e, row=0, start=s.start) for e, s in zip(encoded, spans, strict=True)]
        hidden = self.packed_language(embeddings, positions, build_plan(spans, device), placed)
        return hidden.index_select(0, predictor_index(spans).to(device))

    def _continued(self, encoded: list[EncodedPrompt], spans: tuple[Span, ...]) -> Int[Tensor, "A K"]:
        """Positions of completion tokens: ``max(prompt positions over all axes) + 1 + t`` on every axis."""
        starts = torch.stack([e.positions.max() + 1 for e in encoded])
        offsets, segment = (x.to(starts.device) for x in (completion_offsets(spans), completion_segment(spans)))
        return (starts[segment] + offsets).expand(self.family.axes, -1)

    def _unpacked_hidden(
        self, encoded: list[EncodedPrompt], targets: Int[Tensor, "K"], spans: tuple[Span, ...]
    ) -> Float[Tensor, "K D"]:
        """Each completion in a row of its own; the encoders' output is index-expanded, not computed again."""
        device = self.device
        owner = [i for i, s in enumerate(spans) for _ in s.completions]
        lengths = [c for s in spans for c in s.completions]
        longest = max(spans[i].prompt + c for i, c in zip(owner, lengths, strict=True))
        answers = self.model.get_input_embeddings()(targets).split(lengths)
        continued = self._continued(encoded, spans).split(lengths, dim=1)
        rows, positions, placed = [], [], []
        for row, (i, answer, after) in enumerate(zip(owner, answers, continued, strict=True)):
            pad = longest - spans[i].prompt - len(answer)
            rows.append(nn.functional.pad(torch.cat([encoded[i].embeddings, answer]), (0, 0, 0, pad)))
            positions.append(nn.functional.pad(torch.cat([encoded[i].positions, after], 1), (0, pad)))
            placed.append(PlacedPrompt(encoded=encoded[i], row=row, start=0))
        totals = torch.tensor([spans[i].prompt + c for i, c in zip(owner, lengths, strict=True)])
        mask = (torch.arange(longest) < totals[:, None]).long().to(device)
        hidden = self.language(
            torch.stack(rows), torch.stack(positions, 1), placed, attention_mask=mask, use_cache=False
        )
        columns = torch.cat(
            [
                torch.arange(c) + spans[i].prompt - 1 + row * longest
                for row, (i, c) in enumerate(zip(owner, lengths, strict=True))
            ]
        )
        return hidden.flatten(0, 1).index_select(0, columns.to(device))
