"""The policy's model: load it, adapt it, run it over packed rows, decode with it, save and merge it."""
