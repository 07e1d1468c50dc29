"""The operations of the REST API."""
