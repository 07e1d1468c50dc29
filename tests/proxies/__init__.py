"""Proxies in front of other programs, which ask the site whether a request is admitted."""
