"""The run checks itself: each check compares two things that must agree and stops the run when they do not.

Knows engine and trainer; does not repair anything.
"""
