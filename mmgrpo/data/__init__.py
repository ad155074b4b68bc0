"""Rows to samples: read files, map columns, fill templates, draw in a seeded, resumable order.

Knows no processor, no model and no tensor of the policy.
"""
