"""Tiny models: real architectures of the families built in code, about one million parameters each, no network.

Patch, merge, tile and pixel rules are those of the checkpoints, so that token counts are true. Knows configurations
and processors, no forward.
"""
