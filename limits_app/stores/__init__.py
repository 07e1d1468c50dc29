"""Stores: where the state of limits lives. Each is one module or package and passes the same conformance suite."""
