"""Views of the REST API."""
