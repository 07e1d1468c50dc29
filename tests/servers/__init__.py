"""Real servers for tests, started on free ports of this machine and stopped afterwards."""
