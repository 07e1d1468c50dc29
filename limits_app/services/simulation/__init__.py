"""Simulation: recorded or written usage against proposed limits."""
