"""Attention over packed rows: each prompt stands once and is read by all its completions."""
