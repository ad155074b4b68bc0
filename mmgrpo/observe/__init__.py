"""What a run shows and writes: metrics, progress, tables, completions, the run folder.

Knows names and numbers, not how they came to be.
"""
