"""Packing, the optimizer, the update, supervised warm start, and checkpoints.

Knows batches and losses; does not know where completions came from.
"""
