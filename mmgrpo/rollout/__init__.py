"""Engines: prompts in, groups of completions out.

Knows how to sample and stop; does not know rewards or losses.
"""
