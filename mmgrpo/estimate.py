"""What a run will need, before it runs: memory and seconds per step, from sizes alone.

Plain formulas, each said beside its line; they are for choosing a machine, not for accounting. They leave out the
encoders of pictures and sounds (usually a few per cent), the allocator's slack (add a tenth), and the time of rewards.
Loads no weights: sizes come from a model built without storage.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mmgrpo.config.model import Model
from mmgrpo.config.schema import Config
from mmgrpo.policy.families.spec import FamilySpec
from mmgrpo.policy.model.loading import available_devices
from mmgrpo.policy.model.parts import count_parts, freeze_parts, linear_layers

_ACTIVATIONS = 34
"""Values of width D that a transformer layer keeps per token for backward, in the weights' dtype. Source: Korthikanti
et al., arXiv:2205.05198, section 4, without the quadratic part that fused attention does not keep."""
_GUESS = {"cuda": (120e12, 1.5e12), "mps": (5e12, 2e11), "cpu": (1e11, 2e10)}
"""Flops and bytes per second, where the device is not here to be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """What the formulas need of a model."""

    parameters: int
    trainable: int
    layers: int
    width: int
    vocabulary: int
    cache_values: int
    """Values in the key-value cache per token, over all layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What a device does in a second."""

    device: str
    flops: float
    """Floating-point operations of a large matrix product."""
    bytes: float
    """Bytes read from its memory."""
    measured: bool
    """Measured here, or guessed because the device is not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one step needs."""

    memory: dict[str, float]
    """Bytes by what holds them; rollout and update do not hold theirs at one time."""
    seconds: dict[str, float]
    """By phase."""
    speed: Speed

    @property
    def peak_bytes(self) -> float:
        """The larger of rollout and update, with what both hold."""
        both = sum(self.memory[name] for name in ("weights", "optimizer and gradients"))
        return both + max(self.memory["key-value cache"], self.memory["activations"])

    @property
    def step_seconds(self) -> float:
        """All phases of a step."""
        return sum(self.seconds.values())

    def lines(self) -> list[str]:
        """Write it for people."""
        how = "measured on this machine" if self.speed.measured else "a guess: the device is not here"
        parts = ", ".join(f"{name} {_gigabytes(size)}" for name, size in self.memory.items())
        phases = ", ".join(f"{name} {seconds:.2g} s" for name, seconds in self.seconds.items())
        return [
            f"about {_gigabytes(self.peak_bytes)} of memory at the peak ({parts})",
            f"about {self.step_seconds:.2g} s per step ({phases})",
            f"device {self.speed.device}: {self.speed.flops / 1e12:.3g} Tflop/s, {self.speed.bytes / 1e9:.3g} GB/s; "
            + how,
        ]


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def sizes_of(model: nn.Module, family: FamilySpec, settings: Model) -> ModelSizes:
    """Count a model, which may have no storage.

    Args:
        model: Bare, without adapters.
        family: Its record.
        settings: What of it is trained.
    """
    config: Any = model.config
    text = config.get_text_config()
    if settings.tune == "full":
        freeze_parts(model, family, settings.freeze)
    parts = count_parts(model, family)
    total = sum(part.total for part in parts)
    trainable = (
        sum(part.trainable for part in parts) if settings.tune == "full" else _adapters(model, family, settings)
    )
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelSizes(
        parameters=total,
        trainable=trainable,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        vocabulary=text.vocab_size,
        cache_values=2 * text.num_hidden_layers * heads * head,
    )


def _adapters(model: nn.Module, family: FamilySpec, settings: Model) -> int:
    """Count r x (in + out) for each linear layer of the language model: what the default targets get."""
    rank = settings.lora.r if settings.lora else 0
    named = dict(model.named_modules())
    layers = [named[name] for name in linear_layers(model, family, {"language"})]
    return sum(rank * (layer.in_features + layer.out_features) for layer in layers)  # type: ignore[operator]


def estimate(
    config: Config, sizes: ModelSizes, *, prompt_tokens: float, longest_prompt: int, speed: Speed, bytes_each: int
) -> Estimate:
    """Work out what one step needs.

    Args:
        config: Group size, lengths, micro-batch, optimizer.
        sizes: Of the model.
        prompt_tokens: Of a prompt, on average.
        longest_prompt: Tokens of the longest prompt.
        speed: Of the device.
        bytes_each: Bytes of one weight: 4 in float32, 2 in bfloat16.

    Returns:
        The estimate; every completion is taken to be as long as it may be.
    """
    rollout, train = config.rollout, config.train
    prompts, group, length = train.prompts_per_step, rollout.num_generations, rollout.max_completion_length
    rows = min(rollout.max_rows, prompts * group)
    packed = prompts * (prompt_tokens + group * length)
    batch = min(train.max_batch_tokens, packed)
    states = {"adamw": 8, "sgd": 0}[train.optim] + (4 if bytes_each < 4 else 0)  # moments, and float32 master weights
    kept = 1 if config.model.gradient_checkpointing else _ACTIVATIONS
    whole_layers = _ACTIVATIONS if config.model.gradient_checkpointing else 0
    base = sizes.parameters * (0.5 if config.model.tune == "qlora" else bytes_each)
    memory = {
        "weights": base,
        "optimizer and gradients": sizes.trainable * (bytes_each + states),
        "key-value cache": rows * (longest_prompt + length) * sizes.cache_values * bytes_each,
        "activations": batch * sizes.width * (sizes.layers * kept + whole_layers) * bytes_each
        + config.model.logprob_chunk_tokens * sizes.vocabulary * 12,
    }
    passes = 4 if config.model.gradient_checkpointing else 3  # forward, twice as much backward, and once more
    flops = 2 * sizes.parameters
    turns = -(-prompts * group // rows)
    seconds = {
        "prefill": flops * prompts * prompt_tokens / speed.flops,
        "decode": turns * length * max(base / speed.bytes, flops * rows / speed.flops),
        "update": passes * flops * packed * config.loss.num_iterations / speed.flops,
    }
    return Estimate(memory=memory, seconds=seconds, speed=speed)


def measure(name: str, dtype: torch.dtype) -> Speed:
    """Measure a device, or guess where it is not here.

    Args:
        name: "cuda", "mps" or "cpu".
        dtype: Of the weights.

    Returns:
        What a product of two matrices of 1,024 and a copy of 64 MB reach, the best of a few.
    """
    if not available_devices()[name]:
        flops, moved = _GUESS[name]
        return Speed(device=name, flops=flops, bytes=moved, measured=False)
    device = torch.device(name)
    side = 4096 if name == "cuda" else 1024
    a = torch.ones(side, side, dtype=dtype, device=device)
    b = torch.ones(64_000_000 // 4, dtype=torch.float32, device=device)
    flops = 2 * side**3 / _best(lambda: a @ a, device)
    moved = 2 * b.nbytes / _best(lambda: b.clone(), device)
    return Speed(device=name, flops=flops, bytes=moved, measured=True)


def _best(work: Any, device: torch.device) -> float:
    """Give the shortest of a few times, in seconds."""
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        work()
        if device.type != "cpu":
            (torch.cuda if device.type == "cuda" else torch.mps).synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
