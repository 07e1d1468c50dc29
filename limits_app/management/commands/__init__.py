"""Each command in the module of its name."""
