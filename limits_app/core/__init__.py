"""The engine: limits, decisions and acquisitions, without Django, I/O or reading a clock."""
