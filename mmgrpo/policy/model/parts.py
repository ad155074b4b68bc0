"""Parts of a model: what each is called, which are trained, and the table that says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from mmgrpo.config.model import Freeze
from mmgrpo.errors import ConfigError, explain
from mmgrpo.policy.families.spec import FamilySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCount:
    """One line of the table of trainable parameters."""

    part: str
    total: int
    """Parameters."""
    trainable: int
    """Of these, trained."""


def bare_name(name: str) -> str:
    """Strip what peft puts around a parameter's name.

    Example:
        >>> bare_name("base_model.model.model.layers.0.q_proj.lora_A.default.weight")
        'model.layers.0.q_proj.weight'
    """
    for wrapper in ("base_model.model.", ".base_layer", ".modules_to_save.default", ".original_module"):
        name = name.replace(wrapper, "", 1) if not wrapper.startswith("base") else name.removeprefix(wrapper)
    for adapter in (".lora_A.default", ".lora_B.default", ".lora_embedding_A.default", ".lora_embedding_B.default"):
        name = name.replace(adapter, "")
    return name


def count_parts(model: nn.Module, family: FamilySpec) -> list[PartCount]:
    """Count parameters per part, tied ones once."""
    counts: dict[str, list[int]] = {}
    for name, parameter in model.named_parameters():
        if ".original_module." in name:  # peft keeps the untrained copy of a module that is trained whole
            continue
        row = counts.setdefault(family.part_of(bare_name(name)), [0, 0])
        row[0] += parameter.numel()
        row[1] += parameter.numel() * parameter.requires_grad
    return [PartCount(part=p, total=t, trainable=n) for p, (t, n) in counts.items()]


def freeze_parts(model: nn.Module, family: FamilySpec, freeze: Freeze) -> None:
    """Let every unfrozen part learn, and no other.

    Raises:
        ConfigError: Nothing is left to train.
    """
    frozen = {part for part in ("vision", "projector", "audio", "language") if getattr(freeze, part)}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            learns = family.part_of(bare_name(name)) not in frozen and not name.startswith(family.never_trained)
            parameter.requires_grad_(learns)
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError(explain("Every part is frozen", where="model.freeze", fix="Unfreeze at least one part."))


def whole_modules(model: nn.Module, family: FamilySpec, parts: set[str]) -> list[str]:
    """Names of the largest modules that hold parameters of these parts and of no other.

    Lists of modules and whole encoders are taken apart: what is left can be called, and so be replaced.
    """
    modules: list[str] = []
    if parts:
        _collect_whole(model, "", family, parts, modules)
    return modules


def _collect_whole(module: nn.Module, name: str, family: FamilySpec, parts: set[str], modules: list[str]) -> None:
    names = [f"{name}.{n}" if name else n for n, _ in module.named_parameters()]
    owners = {"never_trained" if n.startswith(family.never_trained) else family.part_of(n) for n in names}
    if not owners & parts:
        return
    callable_whole = not isinstance(module, nn.ModuleList | nn.ModuleDict | PreTrainedModel)
    if owners <= parts and callable_whole:
        modules.append(name)
        return
    for child_name, child in module.named_children():
        _collect_whole(child, f"{name}.{child_name}" if name else child_name, family, parts, modules)


def linear_layers(model: nn.Module, family: FamilySpec, parts: Iterable[str]) -> list[str]:
    """Names of the linear layers in these parts, without the LM head: what "language" means as a LoRA target."""
    wanted = set(parts)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and family.part_of(f"{name}.weight") in wanted
    ]
