"""The REST API for reading and changing limits; requires the extra `drf`.

Mount it with `path("limits/api/", include("limits_app.api.urls"))`.
"""
