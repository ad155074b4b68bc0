"""Bytes to arrays to prompts: decode each media item once, and build the prompt with the loaded processor.

Gets the processor and the family's facts as arguments; imports no transformers.
"""
