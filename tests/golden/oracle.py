"""The GRPO formulas once more, as plain loops over padded numpy arrays, written from the equations alone.

Shares no code and no layout with the package: here everything is [B, C] (completions, padded tokens), in float64.
"""

import math

import numpy as np


def advantages(rewards, group, scale, eps=1e-4):
    rewards, group = list(map(float, rewards)), list(map(int, group))
    result = []
    for r, g in zip(rewards, group, strict=True):
        if math.isnan(r):
            result.append(0.0)
            continue
        own = [x for x, h in zip(rewards, group, strict=True) if h == g and not math.isnan(x)]
        everything = [x for x in rewards if not math.isnan(x)]
        divisor = {"group": std(own) + eps, "batch": std(everything) + eps, "none": 1.0}[scale]
        result.append((r - sum(own) / len(own)) / divisor)
    return np.array(result)


def std(values):
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def policy_loss(now, old, ref, adv, mask, setting):
    """Loss, policy part, gradient with respect to ``now`` and metrics, of one whole optimizer step.

    ``setting`` holds loss_type, level, epsilon, epsilon_high, delta, beta and max_completion_length.
    """
    rows, columns = now.shape
    low, high = 1 - setting["epsilon"], 1 + setting["epsilon_high"]
    lengths = [int(mask[b].sum()) for b in range(rows)]
    weights = token_weights(lengths, setting)
    policy = kl_term = kl_sum = 0.0
    grad = np.zeros_like(now)
    ratios, below, above = [], 0, 0
    for b in range(rows):
        tokens = [t for t in range(columns) if mask[b, t]]
        if not tokens:
            continue
        steps = [now[b, t] - old[b, t] for t in tokens]
        if setting["level"] == "sequence":
            whole = math.exp(sum(steps) / len(steps))
            row_ratios, units = [whole] * len(tokens), [whole]
        else:
            row_ratios = units = [math.exp(s) for s in steps]
        ratios += units
        below += sum(1 for u in units if u < low and adv[b] < 0)
        above += sum(1 for u in units if u > high and adv[b] > 0)
        for t, ratio in zip(tokens, row_ratios, strict=True):
            value, slope = surrogate(ratio, adv[b], low, high, setting["delta"])
            policy += weights[b] * value
            # d ratio / d now: the ratio itself for its own token; a sequence's ratio moves with each of its tokens.
            touched = tokens if setting["level"] == "sequence" else [t]
            for u in touched:
                grad[b, u] += weights[b] * slope * ratio / len(touched)
            gap = ref[b, t] - now[b, t]
            kl = math.exp(gap) - gap - 1
            kl_sum += kl
            kl_term += weights[b] * kl
            grad[b, t] += weights[b] * setting["beta"] * (1 - math.exp(gap))
    units = len(ratios)
    return {
        "loss": policy + setting["beta"] * kl_term,
        "policy_loss": policy,
        "grad": grad,
        "kl": kl_sum / max(sum(lengths), 1),
        "ratio/mean": sum(ratios) / units if units else None,
        "ratio/min": min(ratios, default=None),
        "ratio/max": max(ratios, default=None),
        "clip_ratio/low_mean": below / max(units, 1),
        "clip_ratio/high_mean": above / max(units, 1),
        "clip_ratio/region_mean": (below + above) / max(units, 1),
    }


def surrogate(ratio, advantage, low, high, delta):
    """-min(min(w, delta) A, clip(w) A) and its slope in w."""
    bounded = ratio if delta is None else min(ratio, delta)
    clipped = min(max(ratio, low), high)
    if bounded * advantage <= clipped * advantage:
        free = delta is None or ratio < delta
        return -bounded * advantage, -advantage if free else 0.0
    return -clipped * advantage, -advantage if low < ratio < high else 0.0


def token_weights(lengths, setting):
    """What each loss token of a row is multiplied by in the loss."""
    sequences = sum(1 for n in lengths if n)
    weights = []
    for n in lengths:
        if n == 0:
            weights.append(0.0)
        elif setting["loss_type"] == "grpo":
            weights.append(1 / n / sequences)
        elif setting["loss_type"] == "dr_grpo":
            weights.append(1 / (sequences * setting["max_completion_length"]))
        else:
            weights.append(1 / sum(lengths))
    return weights
