"""Pure GRPO mathematics on tensors: advantages, losses, KL, packed per-token reductions.

Knows nothing of configs, models, devices or text: tensors in, tensors out, in the dtype they are given.
"""
