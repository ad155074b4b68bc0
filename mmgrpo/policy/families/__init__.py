"""One file per model family: which key feeds what, how prompts join, where the parts are.

The only place where a key such as image_grid_thw is known.
"""
