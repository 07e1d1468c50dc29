"""A project that has installed the app, and whose tests know nothing of it."""
