"""The local engine: the policy writes its own completions, in this process.

N prompts are prefilled in one batch, each once; rows that are finished leave the batch, so that the number of decode
row-steps equals the number of tokens written after the first. No call to ``generate``. Weights are the trainer's own:
there is nothing to copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmgrpo.errors import RolloutError, counted, explain
from mmgrpo.metrics import Mean, Metric
from mmgrpo.policy.model.decoding import start_decoding
from mmgrpo.policy.model.policy import Policy
from mmgrpo.rollout.sampling import Draw, draw, stream_keys, uniforms
from mmgrpo.types import Completion, Group, Prompt, Sampling

SPECIAL_RUN = 4
"""A stop string is found across special tokens, up to this many times its own length."""
UNFINISHED = "\ufffd"
"""What stands in decoded text for a character whose other bytes are in another token."""


@dataclass(slots=True)
class _DecodingSlot:
    """One completion while it is written."""

    prompt: int
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    stopped: bool = False


class LocalEngine:
    """Writes completions with the trainer's own model; fulfils :class:`mmgrpo.contracts.Engine`.

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

    @property
    def shares_weights(self) -> bool:
        """Engine and trainer hold the same tensors."""
        return True

    def start(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Note the version: there is nothing to copy."""
        self.version = version

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Note the version: there is nothing to copy."""
        self.version = version

    def release(self) -> None:
        """Nothing is held between calls of :meth:`generate`."""

    def reacquire(self) -> None:
        """Nothing was given back."""

    def close(self) -> None:
        """Nothing is open."""

    def metrics(self) -> Mapping[str, Metric]:
        """Metrics of the completions written since the last call."""
        removed, self._removed = self._removed, []
        return {"sampling/removed_probability": Mean(float(np.mean(removed)), len(removed))} if removed else {}

    def generate(self, prompts: Sequence[Prompt], counts: Sequence[int], sampling: Sampling) -> list[Group]:
        """Write ``counts[i]`` completions for ``prompts[i]``.

        Args:
            prompts: N prompts of any lengths.
            counts: Completions of each, at least one.
            sampling: How tokens are drawn.

        Returns:
            One group per prompt, in order; every completion has at least one token.

        Raises:
            RolloutError: Counts and prompts do not match, a logit is not finite, or the device has no memory left.
        """
        if len(prompts) != len(counts) or any(c < 1 for c in counts):
            raise RolloutError(explain("Each prompt needs a count of at least one", got=f"{len(prompts)}, {counts}"))
        groups: list[Group] = []
        with self.policy.generation_mode():
            for batch in _batches(counts, self.max_rows):
                try:
                    groups += self._generate_batch([prompts[i] for i in batch], [counts[i] for i in batch], sampling)
                except torch.OutOfMemoryError as error:
                    raise RolloutError(_no_memory(len(batch), sum(counts[i] for i in batch), error)) from error
        return groups

    def _generate_batch(self, prompts: list[Prompt], counts: list[int], sampling: Sampling) -> list[Group]:
        decoder = start_decoding(self.policy.module, prompts, counts)
        if self._stops.stops != tuple(sampling.stop):
            self._stops = StopStrings(self.policy.tokenizer, self._special, sampling.stop)
        slots = [_DecodingSlot(prompt=i) for i, count in enumerate(counts) for _ in range(count)]
        keys = np.concatenate(
            [
                stream_keys(sampling.seed, sampling.stream, p.draw_index, c)
                for p, c in zip(prompts, counts, strict=True)
            ]
        )
        vocabulary = decoder.first_logits.shape[-1]
        banned = self._banned(vocabulary)
        seen = self._seen(prompts, slots, vocabulary) if sampling.repetition_penalty != 1 else None
        logits = decoder.first_logits
        active = np.arange(len(slots))
        for token in range(sampling.max_completion_length):
            self._require_finite(logits, prompts, slots, active)
            uniform = torch.from_numpy(uniforms(keys[active], token)).to(self._draws_on)
            drawn = draw(logits.to(self._draws_on), uniform, sampling, banned=banned, seen=seen)
            running = self._record(drawn, [slots[i] for i in active])
            active = active[running]
            if not len(active) or token + 1 == sampling.max_completion_length:
                break
            ids = drawn.token_ids
            if not running.all():
                remaining = torch.from_numpy(np.flatnonzero(running))
                decoder.keep(remaining.tolist())
                ids = ids[remaining.to(ids.device)]
                seen = None if seen is None else seen[remaining.to(seen.device)]
            if seen is not None:
                seen.scatter_(1, ids[:, None], True)
            ids = ids.to(logits.device)
            logits = decoder.step(ids)
            self.decode_row_steps += len(ids)
        return self._groups(prompts, slots)

    def _record(self, drawn: Draw, slots: list[_DecodingSlot]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Append the drawn tokens; tell which slots continue."""
        self._removed += drawn.removed.tolist()
        running = np.ones(len(slots), dtype=bool)
        for i, (slot, token, logprob) in enumerate(
            zip(slots, drawn.token_ids.tolist(), drawn.logprobs.tolist(), strict=True)
        ):
            slot.tokens.append(token)
            slot.logprobs.append(logprob)
            slot.stopped = token in self.end_token_ids or self._stops.ended(slot.tokens)
            running[i] = not slot.stopped
        return running

    def _decode(self, tokens: Sequence[int]) -> str:
        return self.policy.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def _groups(self, prompts: list[Prompt], slots: list[_DecodingSlot]) -> list[Group]:
        by_prompt: list[list[Completion]] = [[] for _ in prompts]
        for slot in slots:
            body = slot.tokens[:-1] if slot.tokens[-1] in self.end_token_ids else slot.tokens
            by_prompt[slot.prompt].append(
                Completion(
                    token_ids=torch.tensor(slot.tokens),
                    rollout_logprobs=torch.tensor(slot.logprobs),
                    loss_mask=torch.ones(len(slot.tokens), dtype=torch.bool),
                    text=self._decode(body),
                    status="stop" if slot.stopped else "length",
                    policy_version=self.version,
                )
            )
        return [Group(prompt=p, completions=tuple(c)) for p, c in zip(prompts, by_prompt, strict=True)]

    def _banned(self, vocabulary: int) -> Tensor:
        """Placeholders that are never written; one may have no logit of its own."""
        return torch.tensor([i for i in self._media if i < vocabulary], dtype=torch.long, device=self._draws_on)

    def _seen(self, prompts: list[Prompt], slots: list[_DecodingSlot], vocabulary: int) -> Tensor:
        seen = torch.zeros(len(slots), vocabulary, dtype=torch.bool, device=self._draws_on)
        for i, slot in enumerate(slots):
            seen[i, prompts[slot.prompt].token_ids.to(seen.device)] = True
        return seen

    def _require_finite(self, logits: Tensor, prompts: list[Prompt], slots: list[_DecodingSlot], active: Any) -> None:
        if bool(logits.sum(dtype=torch.float32).isfinite()):  # one number that any infinity or NaN spoils
            return
        bad = ~torch.isfinite(logits).all(-1)
        if bool(bad.any()):
            slot = slots[int(active[int(bad.nonzero()[0])])]
            raise RolloutError(
                explain(
                    "The policy's logits are not finite",
                    where=f"sample {prompts[slot.prompt].sample.id}, token {len(slot.tokens)}",
                    fix="Lower the learning rate, or go back to the last checkpoint; in float16 use bfloat16.",
                )
            )


def _no_memory(prompts: int, completions: int, error: Exception) -> str:
    return explain(
        "Generation ran out of memory",
        where=f"{counted(prompts, 'prompt')} with {counted(completions, 'completion')} at once",
        got=f"{str(error).splitlines()[0]:.200}",
        fix=f"Lower rollout.max_rows, for example to {max(1, completions // 2)}: results stay the same. In an "
        "evaluation eval.batch_size counts, too; shorter completions and smaller images need less.",
    )


def special_tokens(tokenizer: Any) -> frozenset[int]:
    """Every token that decoding leaves out, also those that the tokenizer has no name for."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}


def end_tokens(policy: Policy) -> frozenset[int]:
    """Every token that ends a turn: of the generation config, the model config and the tokenizer."""
    end: set[int] = set()
    config = policy.model.config
    for holder in (policy.model.generation_config, config, getattr(config, "text_config", None), policy.tokenizer):
        ids = getattr(holder, "eos_token_id", None)
        end |= {ids} if isinstance(ids, int) else set(ids or ())
    return frozenset(end)


def _batches(counts: Sequence[int], max_rows: int) -> Iterator[list[int]]:
    """Split prompts into batches of at most ``max_rows`` completions; a larger group stands alone."""
    batch: list[int] = []
    num_completions = 0
    for i, count in enumerate(counts):
        if batch and num_completions + count > max_rows:
            yield batch
            batch, num_completions = [], 0
        batch.append(i)
        num_completions += count
    if batch:
        yield batch


class StopStrings:
    """Watches completions for stop strings.

    Decoding after every token would cost as much as drawing it. A stop string can only end in a token that shows its
    last character, so the text is looked at after such tokens alone.

    Args:
        tokenizer: Turns tokens into text.
        special: Tokens that do not show.
        stops: The strings; may be none. An empty one ends in every token.
    """

    def __init__(self, tokenizer: Any, special: AbstractSet[int], stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self._tokenizer, self._special = tokenizer, special
        self._last = {s[-1] for s in self.stops if s}
        # a tokenizer may write spaces that a token alone does not show, or take some away
        cleans = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        self._anywhere = cleans or "" in self.stops or any(c.isspace() for c in self._last)
        self._longest = max((len(s.encode()) for s in self.stops), default=0) + 8
        self._may_end_in: dict[int, bool] = {}

    def ended(self, tokens: Sequence[int]) -> bool:
        """Tell whether a stop string ends in the last of these tokens. To be asked after every token."""
        if not self.stops or not self._may_end(tokens[-1]):
            return False
        # it may begin in the middle of a token: look at the last tokens that can hold it, of those that show
        shown = [t for t in tokens[-SPECIAL_RUN * self._longest :] if t not in self._special]
        text = self._decode(shown[-self._longest :])
        return any(s in text for s in self.stops)

    def _may_end(self, token: int) -> bool:
        if token not in self._may_end_in:
            piece = "" if token in self._special else self._decode([token])
            uncertain = not piece or UNFINISHED in piece or self._anywhere
            self._may_end_in[token] = token not in self._special and (uncertain or not self._last.isdisjoint(piece))
        return self._may_end_in[token]

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)
