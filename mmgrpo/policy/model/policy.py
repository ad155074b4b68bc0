"""The policy: one loaded model, what of it is trained, its reference, and how it is saved.

What ``train/`` and ``rollout/`` see. Knows nothing of rewards, losses or data.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.func import functional_call

from mmgrpo.config.model import Model
from mmgrpo.errors import CheckpointError, ConfigError, explain
from mmgrpo.policy.families.spec import FamilySpec, Layout, LoadedFamily
from mmgrpo.policy.model.checkpoint import write_settings
from mmgrpo.policy.model.forward import PackedForward, TokenStats
from mmgrpo.policy.model.loading import GivenModel, load_model
from mmgrpo.policy.model.lora import add_adapters, is_fresh, merged_weights
from mmgrpo.policy.model.parts import PartCount, bare_name, count_parts, freeze_parts
from mmgrpo.policy.model.plain import check_generic
from mmgrpo.policy.model.saved_weights import load_adapter_weights, load_checkpoint_weights, rename_modules
from mmgrpo.policy.patches import enable_gradient_checkpointing
from mmgrpo.types import Batch

DROPOUT_WARNING = explain(
    "With adapter dropout the ratio of a fresh rollout is not exactly 1",
    where="model.lora.dropout",
    fix="Set it to 0, unless the noise is wanted.",
)
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

    def __init__(self, model: Any, processor: Any, family: FamilySpec, settings: Model, adapters: Any = None) -> None:
        self.model = model
        self.processor = processor
        self.family = family
        self.settings = settings
        self.adapters = adapters
        self.family_info = LoadedFamily(spec=family, config=model.config)
        self.module = PackedForward(
            model, family, layout=_layout(family, settings), chunk=settings.logprob_chunk_tokens
        )
        self._reference: dict[str, Tensor] | None = None
        self._replaced: dict[str, Tensor] = {}
        """Weights that stand in for the module's own inside :meth:`reference`."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.module.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.model.get_input_embeddings().weight.dtype

    @property
    def layout(self) -> str:
        """The layout in use, as ``model.layout`` calls it: packed or rows."""
        return "packed" if self.module.layout == "packed" else "rows"

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, also where the processor is more than that."""
        return getattr(self.processor, "tokenizer", self.processor)

    def logprobs(
        self, batch: Batch, *, temperature: float, entropy: bool = False, entropy_gradient: bool = False
    ) -> TokenStats:
        """Score every completion token of a micro-batch; differentiable unless gradients are off."""
        options = {"temperature": temperature, "entropy": entropy, "entropy_gradient": entropy_gradient}
        if self._replaced:
            return functional_call(self.module, self._replaced, (batch,), options)
        return self.module(batch, **options)

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that learn."""
        return [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]

    def named_weights(self, *, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """All weights by the base model's names, adapters added in once, for an engine in another process."""
        yield from merged_weights(self.model, dtype=dtype)

    def parts(self) -> list[PartCount]:
        """Parameters per part, for the table at the start of a run."""
        return count_parts(self.model, self.family)

    def freeze_as_configured(self) -> None:
        """Set which weights learn, as ``model.tune``, ``model.lora`` and ``model.freeze`` say."""
        if self.adapters is None:
            freeze_parts(self.model, self.family, self.settings.freeze)

    @contextmanager
    def generation_mode(self) -> Iterator[None]:
        """No gradients and no recomputation: transformers drops its cache where layers are set to be recomputed."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train(training)

    @contextmanager
    def all_parameters_trainable(self) -> Iterator[None]:
        """Let every weight learn for a while (supervised warm start); adapters stay as they are."""
        before = [(n, p, p.requires_grad) for n, p in self.model.named_parameters()]
        if self.adapters is None:
            for n, p, _ in before:
                p.requires_grad_(p.is_floating_point() and not n.startswith(self.family.never_trained))
        try:
            yield
        finally:
            for _, p, flag in before:
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
        """Inside, :meth:`logprobs` are the reference's; no weight is written.

        Raises:
            RuntimeError: ``fix_reference`` was never called.
        """
        if self._reference is None:
            raise RuntimeError("There is no reference: call fix_reference() first.")
        if not self._reference:
            with self.adapters.disable_adapter():
                yield
            return
        self._replaced = {f"model.{name}": weight for name, weight in self._reference.items()}
        try:
            yield
        finally:
            self._replaced = {}

    def save(self, folder: Path) -> None:
        """Write weights (or the adapter) and the processor, as transformers and peft lay them out."""
        if self.adapters is None:
            self.model.save_pretrained(folder)
        else:
            # the base has its embeddings already; "auto" would look for them on the hub
            self.adapters.save_pretrained(folder, save_embedding_layers=False)
            write_settings(folder, self.settings)
        self.processor.save_pretrained(folder)

    def load_weights_from(self, folder: Path) -> None:
        """Take the weights that :meth:`save` wrote.

        Raises:
            CheckpointError: They cannot be read, or are those of another model.
        """
        try:
            if self.adapters is not None:
                self._load_adapter_from(folder)
            else:
                # transformers renames weights on their way to disk: let it find them again
                saved = load_checkpoint_weights(
                    type(self.model),
                    str(folder),
                    self.family,
                    where=str(folder),
                    error=CheckpointError,
                    dtype=self.dtype,
                )
                self.model.load_state_dict(saved.state_dict())
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            raise CheckpointError(
                explain("The policy's weights cannot be loaded", where=str(folder), got=str(error).splitlines()[0])
            ) from error

    def _load_adapter_from(self, folder: Path) -> None:
        from peft import load_peft_weights

        names = {bare_name(f"{name}.").removesuffix(".") for name, _ in self.model.named_modules()}
        load_adapter_weights(self.adapters, rename_modules(load_peft_weights(str(folder), device="cpu"), names))


def _layout(family: FamilySpec, settings: Model) -> Layout:
    if settings.layout == "packed" and family.layout == "unpacked":
        raise ConfigError(
            explain(
                f"The attention of {family.name} cannot be shared over a group",
                where="model.layout",
                expected="auto or rows",
                got="packed",
            )
        )
    return family.layout if settings.layout == "auto" else "packed" if settings.layout == "packed" else "unpacked"


def load_policy(settings: Model, given: GivenModel | None = None, *, folder: Path | None = None) -> Policy:
    """Load the policy that ``model:`` describes, with what is trained set as it says.

    Args:
        settings: The ``model`` section.
        given: A model that the user has loaded, in place of the one that ``model.name`` names.
        folder: Of the YAML, where ``model.family`` is looked for first.

    Returns:
        A policy on its device, in eval mode.

    Raises:
        ConfigError: As :func:`~mmgrpo.policy.model.loading.load_model` and
            :func:`~mmgrpo.policy.model.lora.add_adapters` say.
    """
    loaded = load_model(settings, given, folder=folder)
    adapters = None
    if settings.lora is not None:
        adapters = add_adapters(loaded.model, loaded.family, settings.lora, settings.freeze)
        adapters.peft_config["default"].base_model_name_or_path = settings.name
        if adapters.peft_config["default"].lora_dropout > 0:
            warnings.warn(DROPOUT_WARNING, stacklevel=2)
    policy = Policy(loaded.model, loaded.processor, loaded.family, settings, adapters)
    policy.freeze_as_configured()
    if loaded.family.generic:
        check_generic(policy)
    if settings.gradient_checkpointing:
        enable_gradient_checkpointing(loaded.model)
        loaded.model.train()  # transformers checkpoints in training mode only; every dropout is zero already
    return policy
