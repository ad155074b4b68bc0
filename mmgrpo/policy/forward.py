"""The packed forward, head included: log-probs of every completion token, each prompt computed once.

One ``nn.Module``, so that a sharded model gathers its weights where they are used; nobody else touches the LM head.
It knows a family only through its record, and nothing of rewards or losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.policy.attention import Attends, one_element_mask
from mmgrpo.policy.compat import decoder_of
from mmgrpo.policy.families.record import Encoded, Family, Placed
from mmgrpo.policy.features import Features
from mmgrpo.policy.head import head_stats
from mmgrpo.policy.layout import (
    Span,
    batch_lengths,
    completion_index,
    completion_offsets,
    completion_segment,
    predictor_index,
    prompt_index,
    spans_of,
)
from mmgrpo.policy.media_count import check_media_count
from mmgrpo.policy.plan import build_plan
from mmgrpo.types import Batch, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """What the policy says of each completion token of a batch, in packed order."""

    logprobs: Float[Tensor, "K"]
    """log p(token | everything before it) at the rollout's temperature, in nats, float32; 0 where not trained."""
    entropy: Float[Tensor, "K"] | None
    """Of the distribution that the token was drawn from, in nats; None if not asked for."""


class PackedForward(nn.Module):
    """The policy's forward over packed rows, and over rows of one prompt and completion each where it must be."""

    def __init__(self, model: Any, family: Family, *, layout: str, chunk: int) -> None:
        super().__init__()
        self.model = model
        self.family = family
        self.layout = layout
        self.chunk = chunk
        self.check_media = True
        """Compare placeholders with features before each forward (``checks.media_count``)."""
        self.features: Features | None = None
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

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        """Run the encoders, once per prompt, or find what frozen ones made of it before.

        Raises:
            ProcessorError: Placeholders and features of a prompt do not match.
        """
        if self.check_media:
            check_media_count(self.family, self.model.config, prompts)
        run = partial(self.family.encode, self.model)
        return run(prompts) if self.features is None else self.features.encode(self.model, self.family, prompts, run)

    def forward(self, batch: Batch, *, temperature: float, entropy: bool = False) -> TokenStats:
        """Log-probs (and entropy) of every completion token of a micro-batch.

        Args:
            batch: Segments in packed order.
            temperature: Of the rollout.
            entropy: Also compute the entropy.

        Returns:
            Per-token statistics, K values each.
        """
        encoded = self.encode([s.prompt for s in batch.segments])
        targets = torch.cat([c.token_ids for c in batch.completions]).to(self.device)
        spans = spans_of(batch_lengths(batch))
        hidden = (
            self._packed_hidden(encoded, targets, spans)
            if self.layout == "packed"
            else self._rows_hidden(encoded, targets, spans)
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
        placed: Sequence[Placed] = (),
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
        plan: Attends,
        placed: Sequence[Placed] = (),
    ) -> Float[Tensor, "T D"]:
        """Call the language model on one packed row whose attention follows a plan."""
        mask = one_element_mask(embeddings.device)
        hidden = self.language(
            embeddings[None], positions[:, None], placed, attention_mask=mask, use_cache=False, plan=plan
        )
        return hidden[0]

    def _packed_hidden(
        self, encoded: list[Encoded], targets: Int[Tensor, "K"], spans: tuple[Span, ...]
    ) -> Float[Tensor, "K D"]:
        device = self.device
        order = torch.cat([prompt_index(spans), completion_index(spans)])
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        place = place.to(device)
        answers = self.model.get_input_embeddings()(targets)
        embeddings = torch.cat([*(e.embeddings for e in encoded), answers]).index_select(0, place)
        positions = torch.cat([*(e.positions for e in encoded), self._continued(encoded, spans)], 1)[:, place]
        placed = [Placed(encoded=e, row=0, start=s.start) for e, s in zip(encoded, spans, strict=True)]
        hidden = self.packed_language(embeddings, positions, build_plan(spans, device), placed)
        return hidden.index_select(0, predictor_index(spans).to(device))

    def _continued(self, encoded: list[Encoded], spans: tuple[Span, ...]) -> Int[Tensor, "A K"]:
        """Positions of completion tokens: ``max(prompt positions over all axes) + 1 + t`` on every axis."""
        starts = torch.stack([e.positions.max() + 1 for e in encoded])
        offsets, segment = (x.to(starts.device) for x in (completion_offsets(spans), completion_segment(spans)))
        return (starts[segment] + offsets).expand(self.family.axes, -1)

    def _rows_hidden(
        self, encoded: list[Encoded], targets: Int[Tensor, "K"], spans: tuple[Span, ...]
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
            placed.append(Placed(encoded=encoded[i], row=row, start=0))
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
