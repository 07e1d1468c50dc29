"""The verbs of the app: one for each use."""
