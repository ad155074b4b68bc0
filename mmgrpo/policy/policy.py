"""The policy: one loaded model, what of it is trained, its reference, and how it is saved.

What ``train/`` and ``rollout/`` see. Knows nothing of rewards, losses or data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.config.model import Model
from mmgrpo.policy.compat import enable_gradient_checkpointing
from mmgrpo.policy.families.record import Family
from mmgrpo.policy.families.registry import Facts
from mmgrpo.policy.forward import PackedForward, TokenStats
from mmgrpo.policy.loading import load_model
from mmgrpo.policy.lora import add_adapters, is_fresh
from mmgrpo.policy.parts import PartCount, count_parts, freeze_parts
from mmgrpo.types import Batch

__all__ = ["Policy", "TokenStats", "load_policy"]


class Policy:
    """A model that writes, scores its own tokens, and learns.

    Args:
        model: The bare transformers model.
        processor: Its processor, or tokenizer.
        family: Its record.
        settings: The ``model`` section.
        adapters: The peft model around ``model``, or None.
    """

    def __init__(self, model: Any, processor: Any, family: Family, settings: Model, adapters: Any = None) -> None:
        self.model = model
        self.processor = processor
        self.family = family
        self.settings = settings
        self.adapters = adapters
        self.facts = Facts(family=family, config=model.config)
        layout = family.layout if settings.layout == "auto" else settings.layout
        self.module = PackedForward(model, family, layout=layout, chunk=settings.logprob_chunk_tokens)
        self._reference: dict[str, Tensor] | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.module.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.model.get_input_embeddings().weight.dtype

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, also where the processor is more than that."""
        return getattr(self.processor, "tokenizer", self.processor)

    def logprobs(self, batch: Batch, *, temperature: float, entropy: bool = False) -> TokenStats:
        """Score every completion token of a micro-batch; differentiable unless gradients are off."""
        return self.module(batch, temperature=temperature, entropy=entropy)

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that learn."""
        return [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights by name, for an engine in another process."""
        yield from self.model.state_dict().items()

    def parts(self) -> list[PartCount]:
        """Parameters per part, for the table at the start of a run."""
        return count_parts(self.model, self.family)

    def freeze_as_configured(self) -> None:
        """Set which weights learn, as ``model.tune``, ``model.lora`` and ``model.freeze`` say."""
        if self.adapters is None:
            freeze_parts(self.model, self.family, self.settings.freeze)

    @contextmanager
    def unfrozen(self) -> Iterator[None]:
        """Let every weight learn for a while (supervised warm start); adapters stay as they are."""
        before = [(p, p.requires_grad) for p in self.model.parameters()]
        if self.adapters is None:
            for p, _ in before:
                p.requires_grad_(p.is_floating_point())
        try:
            yield
        finally:
            for p, flag in before:
                p.requires_grad_(flag)
                if not flag:
                    p.grad = None

    def fix_reference(self) -> None:
        """Make the policy as it is now the reference: KL is exactly 0 until the next optimizer step.

        A fresh adapter costs nothing: the reference is the model with adapters off. Else a copy of the trained
        weights is kept.
        """
        if self.adapters is not None and is_fresh(self.model) and self._only_adapters_learn():
            self._reference = {}
        else:
            self._reference = {n: p.detach().clone() for n, p in self.trainable()}

    def _only_adapters_learn(self) -> bool:
        return all(".lora_" in name for name, _ in self.trainable())

    def reference_state(self) -> dict[str, Tensor] | None:
        """The reference's own weights, for a checkpoint; empty when it is the model with adapters off."""
        return self._reference

    def load_reference(self, state: dict[str, Tensor] | None) -> None:
        """Take a reference from a checkpoint."""
        self._reference = None if state is None else {n: t.to(self.device) for n, t in state.items()}

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, the policy is the reference.

        Raises:
            RuntimeError: ``fix_reference`` was never called.
        """
        if self._reference is None:
            raise RuntimeError("There is no reference: call fix_reference() first.")
        if not self._reference:
            with self.adapters.disable_adapter():
                yield
            return
        live = {n: p.data for n, p in self.model.named_parameters() if n in self._reference}
        self._swap(self._reference)
        try:
            yield
        finally:
            self._swap(live)

    def _swap(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            if name in weights:
                parameter.data = weights[name]

    def save(self, folder: Path) -> None:
        """Write weights (or the adapter) and the processor, as transformers and peft lay them out."""
        (self.adapters if self.adapters is not None else self.model).save_pretrained(folder)
        self.processor.save_pretrained(folder)

    def load_weights_from(self, folder: Path) -> None:
        """Take the weights that :meth:`save` wrote."""
        from safetensors.torch import load_file

        if self.adapters is not None:
            from peft import set_peft_model_state_dict

            set_peft_model_state_dict(self.adapters, load_file(folder / "adapter_model.safetensors"))
            return
        state: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            state.update(load_file(file))
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        tied = set(getattr(self.model, "_tied_weights_keys", None) or ())
        if unexpected or set(missing) - tied:
            raise KeyError(f"{folder}: missing {sorted(set(missing) - tied)[:3]}, unexpected {unexpected[:3]}")


def load_policy(settings: Model) -> Policy:
    """Load the policy that ``model:`` describes, with what is trained set as it says.

    Args:
        settings: The ``model`` section.

    Returns:
        A policy on its device, in eval mode.

    Raises:
        ConfigError: See :func:`mmgrpo.policy.loading.load_model` and :func:`mmgrpo.policy.lora.add_adapters`.
    """
    loaded = load_model(settings)
    adapters = None
    if settings.lora is not None:
        adapters = add_adapters(loaded.model, loaded.family, settings.lora, settings.freeze)
    policy = Policy(loaded.model, loaded.processor, loaded.family, settings, adapters)
    policy.freeze_as_configured()
    if settings.gradient_checkpointing:
        enable_gradient_checkpointing(loaded.model)
        loaded.model.train()  # transformers checkpoints in training mode only; every dropout is zero already
    return policy
