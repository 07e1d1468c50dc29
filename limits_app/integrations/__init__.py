"""Ways in: each finds out who asks for what, calls a service, and translates the answer."""
