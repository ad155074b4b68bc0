"""Held-out evaluation: accuracy greedy and sampled, format rate, per-answer tables, saved with all settings.

Knows engines and rewards; trains nothing.
"""
