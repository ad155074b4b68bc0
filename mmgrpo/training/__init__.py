"""Learning: packing, optimizer, update, warm start, checkpoints.

Knows a policy by what it can do (:class:`mmgrpo.contracts.TrainablePolicy`); does not know model families,
engines, rewards or files of data.
"""
