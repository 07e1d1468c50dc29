"""Acquired amounts and their release: limit sets, pools, acquisitions, leases and waiting; without Django."""
