"""Encoder features kept from the rollout to the update, where nothing that makes them learns.

A frozen encoder gives the same features in the rollout, in the passes for old and reference log-probs, and in every
training pass; so each picture is encoded once a step. Features go when the prompt goes that they belong to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.policy.families.record import Encoded, Family, part_of
from mmgrpo.policy.parts import bare_name
from mmgrpo.types import Prompt


@dataclass(frozen=True, slots=True)
class _Kept:
    """Features of one prompt, and what they were made of."""

    encoded: Encoded
    inputs: dict[str, Any]
    """By the processor's key: a tensor as a weak reference with its version, anything else as text."""
    weights: tuple[int, int]
    size: int


class Features:
    """Keeps what the encoders made of prompts that are still in use."""

    def __init__(self, max_bytes: int) -> None:
        """Start empty.

        Args:
            max_bytes: Held on the policy's device at the most; what comes beyond it is computed each time.
        """
        self._max_bytes = max_bytes
        self._kept: dict[int, _Kept] = {}
        self.held_bytes = 0
        """What is held now."""

    def encode(
        self,
        model: nn.Module,
        family: Family,
        prompts: Sequence[Prompt],
        run: Callable[[Sequence[Prompt]], list[Encoded]],
    ) -> list[Encoded]:
        """Give the features of prompts, computing those that are not held.

        Args:
            model: Whose encoders and embeddings.
            family: Its record.
            prompts: In order.
            run: Encodes prompts, all in one call.

        Returns:
            One entry per prompt; with a weight that learns all are computed.
        """
        if not self._max_bytes or learns(model, family):
            return run(prompts)
        weights = _stamp(frozen_weights(model, family))
        found = [self._find(prompt, weights) for prompt in prompts]
        missing = [prompt for prompt, held in zip(prompts, found, strict=True) if held is None]
        if missing:
            with torch.inference_mode(False), torch.no_grad():  # what is kept must be usable under autograd
                made = iter(run(missing))
            pairs = zip(prompts, found, strict=True)
            return [held or self._keep(prompt, next(made), weights) for prompt, held in pairs]
        return [held for held in found if held is not None]

    def _find(self, prompt: Prompt, weights: tuple[int, int]) -> Encoded | None:
        kept = self._kept.get(id(prompt.token_ids))
        same = kept is not None and kept.weights == weights and _unchanged(kept.inputs, prompt)
        return kept.encoded if kept is not None and same else None

    def _keep(self, prompt: Prompt, encoded: Encoded, weights: tuple[int, int]) -> Encoded:
        place, size = id(prompt.token_ids), _size(encoded)
        self._drop(place)
        if self.held_bytes + size <= self._max_bytes:
            self._kept[place] = _Kept(encoded, _seen(prompt), weights, size)
            self.held_bytes += size
            weakref.finalize(prompt.token_ids, self._drop, place).atexit = False
        return encoded

    def _drop(self, place: int) -> None:
        kept = self._kept.pop(place, None)
        self.held_bytes -= kept.size if kept else 0


def learns(model: nn.Module, family: Family) -> bool:
    """Tell whether a weight learns that prompts are encoded with: of an encoder, a projector or the embeddings."""
    return any(weight.requires_grad for weight in frozen_weights(model, family))


def frozen_weights(model: nn.Module, family: Family) -> list[nn.Parameter]:
    """Give all weights that prompts are encoded with.

    Args:
        model: The policy's model.
        family: Its record.
    """
    parts = [w for name, w in model.named_parameters() if part_of(family, bare_name(name)) != "language"]
    return [*parts, *model.get_input_embeddings().parameters()]  # type: ignore[operator]


def _stamp(weights: Iterable[nn.Parameter]) -> tuple[int, int]:
    """Sum up where weights stand and how often they were written: another sum is another encoder."""
    versions = places = 0
    for weight in weights:
        versions, places = versions + weight._version, places + weight.data_ptr()
    return versions, places


def _seen(prompt: Prompt) -> dict[str, Any]:
    inputs = {"input_ids": prompt.token_ids, **prompt.model_inputs}
    return {
        name: (weakref.ref(value), value._version) if isinstance(value, Tensor) else repr(value)
        for name, value in inputs.items()
    }


def _unchanged(seen: dict[str, Any], prompt: Prompt) -> bool:
    """Whether these are the very tensors of before, not written to since."""
    inputs = {"input_ids": prompt.token_ids, **prompt.model_inputs}
    if seen.keys() != inputs.keys():
        return False
    for name, value in inputs.items():
        before = seen[name]
        if isinstance(value, Tensor):
            if not isinstance(before, tuple) or before[0]() is not value or before[1] != value._version:
                return False
        elif before != repr(value):
            return False
    return True


def _size(encoded: Encoded) -> int:
    return sum(tensor.nbytes for tensor in (encoded.embeddings, encoded.positions, *encoded.extras.values()))
