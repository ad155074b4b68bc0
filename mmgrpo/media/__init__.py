"""Bytes to arrays to prompts: decode each medium once, and build the prompt with the loaded processor.

Gets the processor and the family's facts as arguments; imports no transformers.
"""
