"""The configuration: pydantic sections and the YAML loader. No torch is imported here.

The room turns a file and ``key=value`` overrides into one frozen :class:`Config`. It does not know what any key does.
"""
