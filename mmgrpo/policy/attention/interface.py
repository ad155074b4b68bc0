"""Where transformers calls attention, and where the plan of a packed row takes over.

The function is registered under :data:`NAME` with transformers' attention and mask interfaces. A model call that
carries ``plan=…`` uses it; any other call (plain rows, the unpacked layout) falls through to transformers' own SDPA.
The plan travels as a keyword of the model call, so that it is still there when gradient checkpointing recomputes.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mmgrpo.errors import TrainingError, explain
from mmgrpo.policy.attention.blocks import block_plan
from mmgrpo.policy.attention.layout import Span
from mmgrpo.policy.attention.prefix import has_kernels, prefix_plan

NAME = "mmgrpo_packed"
"""Name of the attention implementation in transformers' registry."""


class AttentionPlan(Protocol):
    """Anything that computes one layer's attention over a row: a training plan, a prefill, a decoding step."""

    @property
    def max_span(self) -> int:
        """Tokens from the first of a prompt to the last of its longest completion: what one query may look back."""
        ...

    def attend(
        self, layer: int, q: Float[Tensor, "T H D"], k: Float[Tensor, "T J D"], v: Float[Tensor, "T J D"], scale: float
    ) -> Float[Tensor, "T H D"]:
        """Return what each token of the row attends to."""
        ...


def build_plan(spans: tuple[Span, ...], device: torch.device) -> AttentionPlan:
    """Choose how a row's attention is computed.

    Args:
        spans: Where prompts and completions stand.
        device: Where the row will be.

    Returns:
        A plan that covers every row index.
    """
    return (prefix_plan if has_kernels(device.type) else block_plan)(spans, device)


def packed_attention(
    module: nn.Module,
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B J T D"],
    value: Float[Tensor, "B J T D"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    plan: AttentionPlan | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "B T H D"], None]:
    """Attend by the plan if there is one, else as transformers' SDPA does.

    Args:
        module: The attention layer; its ``layer_idx`` tells the layer.
        query: Queries after rotary positions; B is 1 under a plan.
        key: Keys.
        value: Values.
        attention_mask: Only used without a plan.
        scaling: Factor of the scores; default ``D ** -0.5``.
        plan: The packed row's attention.
        **kwargs: What the model passes down beside (sliding window, positions, dropout).

    Returns:
        The output, and None for the weights.

    Raises:
        TrainingError: The layer has a sliding window shorter than a prompt with its completion; such a model needs
            ``layout: rows``.
    """
    if plan is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    window = kwargs.get("sliding_window")
    if window is not None and plan.max_span > window:
        raise TrainingError(
            explain(
                "A sliding window cannot be shared by a packed row yet",
                got=f"window {window} tokens, prompt and completion {plan.max_span} tokens",
                fix="Set model.layout: rows.",
            )
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out = plan.attend(int(module.layer_idx), q, k, v, scale)  # type: ignore[arg-type]
    return out[None], None


def register_attention() -> None:
    """Make :data:`NAME` known to transformers; calling it again changes nothing."""
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def one_element_mask(device: torch.device) -> Tensor:
    """A 4-D mask of one element: transformers hands it through, and builds no ``[T, T]`` mask of its own."""
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
