"""The packed forward, head included: log-probs of every completion token, each prompt computed once.

One ``nn.Module``, so that a sharded model gathers its weights where they are used; nobody else touches the LM head.
Three stages: the encoders (whose output is cached while nothing that makes it learns), the language model over a
packed row, and the head, which never holds ``[K, V]`` logits. It knows a family only through its record, and nothing
of rewards or losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakIdKeyDictionary

from mmgrpo.errors import TrainingError, explain
from mmgrpo.grpo.logprobs import chosen_logprobs, entropy_of, log_distribution
from mmgrpo.policy.attention.interface import NAME, AttentionPlan, build_plan, one_element_mask
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


def _chunk_both(
    hidden: Float[Tensor, "k D"], token_ids: Int[Tensor, "k"], head: Callable[[Tensor], Tensor], temperature: float
) -> Float[Tensor, "2 k"]:
    """Log-probs and entropy of a chunk, both differentiable."""
    every = log_distribution(head(hidden), temperature=temperature)
    return torch.stack([chosen_logprobs(every, token_ids), entropy_of(every)])


def head_stats(
    hidden: Float[Tensor, "K D"],
    token_ids: Int[Tensor, "K"],
    head: Callable[[Tensor], Tensor],
    *,
    temperature: float,
    chunk: int,
    entropy: bool = False,
    entropy_gradient: bool = False,
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
        entropy_gradient: With its gradient; else it is computed once, and backward does not pay for it.

    Returns:
        Log-probs and entropy in nats, float32 (float64 stays).
    """
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for start in range(0, len(token_ids), chunk):
        part = slice(start, start + chunk)
        if entropy and entropy_gradient and torch.is_grad_enabled():
            both = checkpoint(_chunk_both, hidden[part], token_ids[part], head, temperature, use_reentrant=False)
            logprobs.append(both[0])
            entropies.append(both[1])
            continue
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
    inputs: dict[str, tuple[Any, Any]]
    """By the processor's key, as :func:`_snapshot` gives it."""
    weights: tuple[Any, ...]
    size: int


class FeatureCache:
    """Keeps what frozen encoders made of prompts that are still in use, from the rollout to the update.

    A frozen encoder gives the same features in the rollout, in the passes for old and reference log-probs, and in
    every training pass; so each image is encoded once a step. Features go when the prompt's token ids go.
    """

    def __init__(self, max_bytes: int) -> None:
        """Start empty.

        Args:
            max_bytes: Held on the policy's device at the most; what comes beyond it is computed each time.
        """
        self._max_bytes = max_bytes
        self._entries: MutableMapping[Tensor, _CachedFeatures] = WeakIdKeyDictionary()

    @property
    def held_bytes(self) -> int:
        """What is held now."""
        return sum(entry.size for entry in self._entries.values())

    def encode(
        self,
        weights: Sequence[nn.Parameter],
        prompts: Sequence[Prompt],
        run: Callable[[Sequence[Prompt]], list[EncodedPrompt]],
    ) -> list[EncodedPrompt]:
        """Give the features of prompts, computing those that are not held.

        Args:
            weights: All weights that prompts are encoded with.
            prompts: In order.
            run: Encodes prompts, all in one call.

        Returns:
            One entry per prompt; with a weight that learns all are computed.
        """
        if not self._max_bytes or any(weight.requires_grad for weight in weights):
            return run(prompts)
        state = _fingerprint(weights)
        encoded = [self._lookup(prompt, state) for prompt in prompts]
        missing = [i for i, features in enumerate(encoded) if features is None]
        if missing:
            with torch.inference_mode(False), torch.no_grad():  # what is cached must be usable under autograd
                made = run([prompts[i] for i in missing])
            for i, features in zip(missing, made, strict=True):
                encoded[i] = features
                self._store(prompts[i], features, state)
        return [features for features in encoded if features is not None]

    def _lookup(self, prompt: Prompt, state: tuple[Any, ...]) -> EncodedPrompt | None:
        entry = self._entries.get(prompt.token_ids)
        same = entry is not None and entry.weights == state and _is_same(entry.inputs, _snapshot(prompt))
        return entry.encoded if entry is not None and same else None

    def _store(self, prompt: Prompt, encoded: EncodedPrompt, state: tuple[Any, ...]) -> None:
        self._entries.pop(prompt.token_ids, None)
        size = sum(x.nbytes for x in (encoded.embeddings, encoded.positions, *encoded.extras.values()))
        if self.held_bytes + size <= self._max_bytes:
            self._entries[prompt.token_ids] = _CachedFeatures(encoded, _snapshot(prompt), state, size)


def _snapshot(prompt: Prompt) -> dict[str, tuple[Any, Any]]:
    """What a prompt is made of: tensors with their versions, anything else as text."""
    inputs = {
        name: (x, x._version) if isinstance(x, Tensor) else (None, repr(x)) for name, x in prompt.model_inputs.items()
    }
    return {"": (None, prompt.token_ids._version), **inputs}


def _is_same(before: Mapping[str, tuple[Any, Any]], now: Mapping[str, tuple[Any, Any]]) -> bool:
    """Whether these are the very tensors of before, not written to since."""
    pairs = [(before[name], now[name]) for name in now if name in before]
    return before.keys() == now.keys() and all(a[0] is b[0] and a[1] == b[1] for a, b in pairs)


def _fingerprint(weights: Sequence[nn.Parameter]) -> tuple[Any, ...]:
    """What tells one state of weights from another: their places, versions and norms.

    Norms also notice what is written behind the version counter (``p.data.copy_()``).
    """
    tensors = [weight.detach() for weight in weights]
    norms = torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float32)).tolist() if tensors else []
    return (*(weight.data_ptr() for weight in weights), *(weight._version for weight in weights), *norms)


def encoder_weights(model: nn.Module, family: FamilySpec) -> list[nn.Parameter]:
    """Give all weights that prompts are encoded with: of encoders, projectors and the token embeddings.

    Args:
        model: The policy's model.
        family: Its record.
    """
    parts = [w for name, w in model.named_parameters() if family.part_of(bare_name(name)) != "language"]
    return [*parts, *model.get_input_embeddings().parameters()]  # type: ignore[operator]


class PackedForward(nn.Module):
    """The policy's forward over packed rows, and over rows of one prompt and completion each where it must be."""

    FORWARD_METHODS = ("forward", "encode_media", "embed", "language", "head")
    """Everything that uses weights; a sharding wrapper has to gather them before each of these, and needs no more."""

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
        self._encoder_weights = encoder_weights(model, family)

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
        return self._encode(prompts) if cache is None else cache.encode(self._encoder_weights, prompts, self._encode)

    def _encode(self, prompts: Sequence[Prompt]) -> list[EncodedPrompt]:
        return self.family.encode(self.model, prompts)

    def embed(self, token_ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        """Token embeddings of completion tokens, which stand for themselves."""
        return self.model.get_input_embeddings()(token_ids)

    def forward(
        self, batch: Batch, *, temperature: float, entropy: bool = False, entropy_gradient: bool = False
    ) -> TokenStats:
        """Log-probs (and entropy) of every completion token of a micro-batch.

        Args:
            batch: Segments in packed order.
            temperature: Of the rollout.
            entropy: Also compute the entropy.
            entropy_gradient: With its gradient.

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
            hidden,
            targets,
            self.head,
            temperature=temperature,
            chunk=self.chunk,
            entropy=entropy,
            entropy_gradient=entropy_gradient,
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
        """Call the language model on one packed row whose attention follows a plan.

        Raises:
            TrainingError: Somebody gave the model another attention.
        """
        if self.decoder.config._attn_implementation != NAME:
            raise TrainingError(
                explain(
                    "The policy's attention was replaced",
                    got=f"attn_implementation {self.decoder.config._attn_implementation!r}",
                    expected=repr(NAME),
                    fix=f"Set it back: model.set_attn_implementation({NAME!r}), or load with model.layout: rows.",
                )
            )
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
        answers = self.embed(targets)
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
        answers = self.embed(targets).split(lengths)
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
