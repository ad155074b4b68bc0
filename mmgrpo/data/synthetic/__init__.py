"""Rows made in code, with their ground truth: scenes to count in.

Deterministic by seed. Knows no model.
"""
