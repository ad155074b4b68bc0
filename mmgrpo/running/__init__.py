"""A run while it goes: its steps, its figures, its signals, its checkpoints.

Knows when things happen; not how completions are written, scored or learned from.
"""
