"""The engine: limits, decisions and acquisitions, without Django, I/O or a clock of its own."""
