"""The REST API: to see and to change what holds, in JSON; needs the extra `drf`.

A site mounts it with `path("limits/api/", include("limits_app.api.urls"))`.
"""
