"""Rows made in code, with their truth: scenes to count in.

Deterministic by seed. Knows no model.
"""
