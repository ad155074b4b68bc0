"""The local engine: the policy writes its own completions, in this process.

N prompts are prefilled in one batch, each once; rows that are finished leave the batch, so that the number of decode
row-steps equals the number of tokens written after the first. No call to ``generate``. Weights are the trainer's own:
there is nothing to copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmgrpo.errors import RolloutError, explain
from mmgrpo.policy.decoding import start_decoding
from mmgrpo.policy.policy import Policy
from mmgrpo.rollout.sampling import Draw, draw
from mmgrpo.rollout.stops import StopStrings
from mmgrpo.rollout.streams import stream_keys, uniforms
from mmgrpo.types import Completion, Group, Prompt, Sampling


@dataclass(slots=True)
class _Row:
    """One completion while it is written."""

    prompt: int
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    stopped: bool = False


class LocalEngine:
    """Writes completions with the trainer's own model (``contracts.Engine``).

    Args:
        policy: The policy.
        max_rows: Completions decoded side by side.
    """

    def __init__(self, policy: Policy, *, max_rows: int = 1024) -> None:
        self.policy = policy
        self.max_rows = max_rows
        self.version = 0
        self.end_token_ids = end_tokens(policy)
        # mps has no float64, in which tokens are drawn
        self._draws_on = torch.device("cpu") if policy.device.type == "mps" else policy.device
        self._media = sorted({i for ids in policy.family.media_tokens(policy.model.config).values() for i in ids})
        self._special = special_tokens(policy.tokenizer)
        self._stops = StopStrings(policy.tokenizer, self._special, ())
        self._removed: list[float] = []
        self.decode_row_steps = 0
        """Tokens that went through the model one at a time, since the engine was made."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Note the version: engine and trainer hold the same tensors."""
        self.version = version

    def metrics(self) -> Mapping[str, float]:
        """Figures of the completions written since the last call."""
        removed, self._removed = self._removed, []
        return {"sampling/removed_probability": float(np.mean(removed))} if removed else {}

    def generate(self, prompts: Sequence[Prompt], counts: Sequence[int], sampling: Sampling) -> list[Group]:
        """Write ``counts[i]`` completions for ``prompts[i]``.

        Args:
            prompts: N prompts of any lengths.
            counts: Completions of each, at least one.
            sampling: How tokens are drawn.

        Returns:
            One group per prompt, in order; every completion has at least one token.

        Raises:
            RolloutError: Counts and prompts do not match, or a logit is not finite.
        """
        if len(prompts) != len(counts) or any(c < 1 for c in counts):
            raise RolloutError(explain("Each prompt needs a count of at least one", got=f"{len(prompts)}, {counts}"))
        groups: list[Group] = []
        with self.policy.writing():
            for part in _parts(counts, self.max_rows):
                groups += self._generate_part([prompts[i] for i in part], [counts[i] for i in part], sampling)
        return groups

    def _generate_part(self, prompts: list[Prompt], counts: list[int], sampling: Sampling) -> list[Group]:
        decoder = start_decoding(self.policy.module, prompts, counts)
        if self._stops.stops != tuple(sampling.stop):
            self._stops = StopStrings(self.policy.tokenizer, self._special, sampling.stop)
        rows = [_Row(prompt=i) for i, count in enumerate(counts) for _ in range(count)]
        keys = np.concatenate(
            [
                stream_keys(sampling.seed, sampling.stream, p.occurrence, c)
                for p, c in zip(prompts, counts, strict=True)
            ]
        )
        vocabulary = decoder.first_logits.shape[-1]
        banned = self._banned(vocabulary)
        seen = self._seen(prompts, rows, vocabulary) if sampling.repetition_penalty != 1 else None
        logits = decoder.first_logits
        active = np.arange(len(rows))
        for token in range(sampling.max_completion_length):
            self._require_finite(logits, prompts, rows, active)
            uniform = torch.from_numpy(uniforms(keys[active], token)).to(self._draws_on)
            drawn = draw(logits.to(self._draws_on), uniform, sampling, banned=banned, seen=seen)
            going = self._record(drawn, [rows[i] for i in active])
            active = active[going]
            if not len(active) or token + 1 == sampling.max_completion_length:
                break
            ids = drawn.token_ids
            if not going.all():
                kept = torch.from_numpy(np.flatnonzero(going))
                decoder.keep(kept.tolist())
                ids = ids[kept.to(ids.device)]
                seen = None if seen is None else seen[kept.to(seen.device)]
            if seen is not None:
                seen.scatter_(1, ids[:, None], True)
            ids = ids.to(logits.device)
            logits = decoder.step(ids)
            self.decode_row_steps += len(ids)
        return self._groups(prompts, rows)

    def _record(self, drawn: Draw, rows: list[_Row]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Append the drawn tokens; tell which rows go on."""
        self._removed += drawn.removed.tolist()
        going = np.ones(len(rows), dtype=bool)
        for i, (row, token, logprob) in enumerate(
            zip(rows, drawn.token_ids.tolist(), drawn.logprobs.tolist(), strict=True)
        ):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.stopped = token in self.end_token_ids or self._stops.ended(row.tokens)
            going[i] = not row.stopped
        return going

    def _decode(self, tokens: Sequence[int]) -> str:
        return self.policy.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def _groups(self, prompts: list[Prompt], rows: list[_Row]) -> list[Group]:
        by_prompt: list[list[Completion]] = [[] for _ in prompts]
        for row in rows:
            body = row.tokens[:-1] if row.tokens[-1] in self.end_token_ids else row.tokens
            by_prompt[row.prompt].append(
                Completion(
                    token_ids=torch.tensor(row.tokens),
                    rollout_logprobs=torch.tensor(row.logprobs),
                    loss_mask=torch.ones(len(row.tokens), dtype=torch.bool),
                    text=self._decode(body),
                    status="stop" if row.stopped else "length",
                    policy_version=self.version,
                )
            )
        return [Group(prompt=p, completions=tuple(c)) for p, c in zip(prompts, by_prompt, strict=True)]

    def _banned(self, vocabulary: int) -> Tensor:
        """Placeholders that are never written; one may have no logit of its own."""
        return torch.tensor([i for i in self._media if i < vocabulary], dtype=torch.long, device=self._draws_on)

    def _seen(self, prompts: list[Prompt], rows: list[_Row], vocabulary: int) -> Tensor:
        seen = torch.zeros(len(rows), vocabulary, dtype=torch.bool, device=self._draws_on)
        for i, row in enumerate(rows):
            seen[i, prompts[row.prompt].token_ids.to(seen.device)] = True
        return seen

    def _require_finite(self, logits: Tensor, prompts: list[Prompt], rows: list[_Row], active: Any) -> None:
        if bool(logits.sum(dtype=torch.float32).isfinite()):  # one number that any infinity or NaN spoils
            return
        bad = ~torch.isfinite(logits).all(-1)
        if bool(bad.any()):
            row = rows[int(active[int(bad.nonzero()[0])])]
            raise RolloutError(
                explain(
                    "The policy's logits are not finite",
                    where=f"sample {prompts[row.prompt].sample.id}, token {len(row.tokens)}",
                    fix="Lower the learning rate, or go back to the last checkpoint; in float16 use bfloat16.",
                )
            )


def special_tokens(tokenizer: Any) -> frozenset[int]:
    """Every token that decoding leaves out, also those that the tokenizer has no name for."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}


def end_tokens(policy: Policy) -> frozenset[int]:
    """Every token that ends a turn: of the generation config, the model config and the tokenizer."""
    found: set[int] = set()
    config = policy.model.config
    for holder in (policy.model.generation_config, config, getattr(config, "text_config", None), policy.tokenizer):
        ids = getattr(holder, "eos_token_id", None)
        found |= {ids} if isinstance(ids, int) else set(ids or ())
    return frozenset(found)


def _parts(counts: Sequence[int], max_rows: int) -> Iterator[list[int]]:
    """Split prompts into batches of at most ``max_rows`` completions; a larger group stands alone."""
    part: list[int] = []
    rows = 0
    for i, count in enumerate(counts):
        if part and rows + count > max_rows:
            yield part
            part, rows = [], 0
        part.append(i)
        rows += count
    if part:
        yield part
