"""The ranks of a run: how they reach each other, what each holds of the model, how they add up and wait.

The only room that knows torch.distributed. It does not know policies, losses, rewards or configurations.
"""
