"""What the REST API says and hears, in JSON."""
