"""One file per model family: which key feeds what, how prompts join, and a tiny twin of it.

The only place where a key such as image_grid_thw is known.
"""
