"""The reward contract: load functions, call them by name, check what they return, and add them up.

Knows no model and no loss; the shipped rewards are plug-ins in rewards/.
"""
