"""A shipped fake: an engine that replays given texts, to try rewards, evaluations and loops without a model.

Knows no weights and samples nothing; everything else about its groups is as an engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import RolloutError, explain
from mmgrpo.types import Completion, Group, Prompt, Sample, Sampling

Script = Mapping[str, Sequence[str]] | Callable[[Sample, int], str]
"""Texts by sample id, taken in turn; or a function of the sample and the completion's number."""
END = 256
"""The end token where no tokenizer is given: text is then written in bytes."""


class ScriptedEngine:
    """Replays texts; fulfils :class:`mmgrpo.contracts.Engine`.

    Args:
        script: What it writes.
        tokenizer: Turns texts into tokens and back; None: one token per byte.
        logprob: Recorded for every token, in nats.

    Example:
        >>> from mmgrpo.types import Prompt, Sample, Sampling
        >>> ids = torch.zeros(1, dtype=torch.long)
        >>> prompt = Prompt(sample=Sample(id="a", messages=()), text="", token_ids=ids, model_inputs={})
        >>> engine = ScriptedEngine({"a": ["<answer>3</answer>", "four"]})
        >>> group = engine.generate([prompt], [3], Sampling(max_completion_length=32))[0]
        >>> [c.text for c in group.completions]
        ['<answer>3</answer>', 'four', '<answer>3</answer>']
    """

    def __init__(self, script: Script, *, tokenizer: Any = None, logprob: float = -1.0) -> None:
        self.script = script
        self.version = 0
        self.calls: list[tuple[tuple[str, ...], tuple[int, ...], Sampling]] = []
        """Sample ids, counts and sampling of every call."""
        self._tokenizer, self._logprob = tokenizer, logprob

    @property
    def shares_weights(self) -> bool:
        """It has none."""
        return False

    def start(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Note the version; weights are not looked at."""
        self.version = version

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Note the version; weights are not looked at."""
        self.version = version

    def release(self) -> None:
        """Nothing is held."""

    def reacquire(self) -> None:
        """Nothing was given back."""

    def close(self) -> None:
        """Nothing is open."""

    def metrics(self) -> Mapping[str, float]:
        """Nothing is measured."""
        return {}

    def generate(self, prompts: Sequence[Prompt], counts: Sequence[int], sampling: Sampling) -> list[Group]:
        """Write ``counts[i]`` completions for ``prompts[i]``; a text longer than the limit is cut, as a model's is.

        Args:
            prompts: N prompts.
            counts: Completions of each.
            sampling: Only its limit counts.

        Returns:
            One group per prompt, in order.

        Raises:
            RolloutError: The script has nothing for a sample.
        """
        self.calls.append((tuple(p.sample.id for p in prompts), tuple(counts), sampling))
        return [
            Group(
                prompt=prompt,
                completions=tuple(self._completion(self._text(prompt.sample, i), sampling) for i in range(count)),
            )
            for prompt, count in zip(prompts, counts, strict=True)
        ]

    def _text(self, sample: Sample, index: int) -> str:
        if callable(self.script):
            return self.script(sample, index)
        texts = self.script.get(sample.id)
        if not texts:
            raise RolloutError(
                explain("The script has no text for this sample", where=f"sample {sample.id}", fix="Add one.")
            )
        return texts[index % len(texts)]

    def _completion(self, text: str, sampling: Sampling) -> Completion:
        body = self._encode(text)
        whole = len(body) < sampling.max_completion_length
        ids = [*body, self._end] if whole else body[: sampling.max_completion_length]
        return Completion(
            token_ids=torch.tensor(ids),
            rollout_logprobs=torch.full((len(ids),), self._logprob),
            loss_mask=torch.ones(len(ids), dtype=torch.bool),
            text=text if whole else self._decode(ids),
            status="stop" if whole else "length",
            policy_version=self.version,
        )

    @property
    def _end(self) -> int:
        return END if self._tokenizer is None else self._tokenizer.eos_token_id

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            return list(text.encode("utf-8"))
        return list(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _decode(self, ids: list[int]) -> str:
        if self._tokenizer is None:
            return bytes(ids).decode("utf-8", "replace")
        return self._tokenizer.decode(ids, skip_special_tokens=True)
