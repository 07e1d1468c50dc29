"""The demo and test site: a Django project that uses limits_app."""
