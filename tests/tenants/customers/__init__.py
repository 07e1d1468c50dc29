"""An app with the tenants of a site."""
