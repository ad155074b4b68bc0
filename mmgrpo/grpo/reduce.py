"""Token values to one number: sums per completion, and the averages that give loss types their names.

Works on packed tokens: K completion tokens in a flat row, and for each the completion (0 to S - 1) it belongs to.
Knows nothing of what the values mean.
"""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.grpo.objective import Counts, LossType


def sequence_sums(values: Float[Tensor, "K"], sequence: Int[Tensor, "K"], num_completions: int) -> Float[Tensor, "S"]:
    """Add up the token values of each completion.

    Args:
        values: One value per token.
        sequence: Which completion each token belongs to, 0 to ``num_completions - 1``, in any order.
        num_completions: S; completions without a token get 0.

    Returns:
        One sum per completion.

    Example:
        >>> import torch
        >>> sequence_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2]), 3)
        tensor([3., 0., 4.])
    """
    return values.new_zeros(num_completions).index_add(0, sequence, values)


def reduce_tokens(
    values: Float[Tensor, "K"],
    sequence: Int[Tensor, "K"],
    loss_mask: Bool[Tensor, "K"],
    *,
    loss_type: LossType,
    counts: Counts,
    num_completions: int,
) -> Float[Tensor, ""]:
    """Average token values the way a loss type does, over one micro-batch's share of an optimizer step.

    With M[s] the loss tokens of completion s, and counts of the whole optimizer step:

        grpo       sum_s (sum of values over M[s]) / |M[s]|  / num_sequences
        dr_grpo    sum_s  sum of values over M[s]            / (num_sequences * max_completion_length)
        dapo, bnpo sum_s  sum of values over M[s]            / num_tokens

    The results of all micro-batches add up to the step's: do not divide by their number. A step without any loss
    token gives exactly 0, with a gradient of 0.

    Args:
        values: One value per token; values outside the mask are ignored, whatever they are.
        sequence: Which completion each token belongs to. All loss tokens of a completion stand in one micro-batch.
        loss_mask: True where the token is trained.
        loss_type: The average to take.
        counts: Denominators of the whole optimizer step.
        num_completions: S, completions in this micro-batch.

    Returns:
        This micro-batch's share of the average.

    Source: DeepSeekMath, arXiv:2402.03300, equation 3 (grpo); Dr. GRPO, arXiv:2503.20783, section 3 (dr_grpo); DAPO,
        arXiv:2503.14476, section 3.3 (dapo).

    Example:
        >>> import torch
        >>> values, sequence = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1])
        >>> counts = Counts(num_tokens=3, num_sequences=2, max_completion_length=4)
        >>> reduce_tokens(values, sequence, values > 0, loss_type="grpo", counts=counts, num_completions=2)
        tensor(3.5000)
    """
    values = values.masked_fill(~loss_mask, 0)
    if loss_type == "grpo":
        lengths = sequence_sums(loss_mask.to(values.dtype), sequence, num_completions)
        means = sequence_sums(values, sequence, num_completions) / lengths.clamp(min=1)
        return means.sum() / max(counts.num_sequences, 1)
    if loss_type == "dr_grpo":
        return values.sum() / max(counts.num_sequences * counts.max_completion_length, 1)
    return values.sum() / max(counts.num_tokens, 1)
