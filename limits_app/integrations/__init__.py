"""Integrations: each finds the resource and the entity of a request, calls a service and translates the result."""
