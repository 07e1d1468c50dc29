"""`manage.py limits`: one module for each subcommand, or for a few that are alike."""
