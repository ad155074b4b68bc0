"""The policy: load it, adapt it (LoRA, freezing), run it packed, save it.

The only room that knows transformers and peft. Does not know rewards, rollouts or optimizers.
"""
