"""The subcommands of `manage.py limits`, by subject."""
