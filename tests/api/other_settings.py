"""The settings of the tests, with another value for every setting of REST framework and of drf-spectacular."""

from __future__ import annotations

from typing import Any

from project.settings import *  # noqa: F403

_OTHER = "tests.api.other_framework."

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_RENDERER_CLASSES": [f"{_OTHER}Renderer"],
    "DEFAULT_PARSER_CLASSES": [f"{_OTHER}Parser"],
    "DEFAULT_AUTHENTICATION_CLASSES": [f"{_OTHER}UserOfDjango"],
    "DEFAULT_PERMISSION_CLASSES": [f"{_OTHER}Denied"],
    "DEFAULT_THROTTLE_CLASSES": [f"{_OTHER}Throttled"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": f"{_OTHER}Negotiation",
    "DEFAULT_METADATA_CLASS": f"{_OTHER}Metadata",
    "DEFAULT_VERSIONING_CLASS": f"{_OTHER}Versioning",
    "DEFAULT_PAGINATION_CLASS": f"{_OTHER}Pagination",
    "DEFAULT_FILTER_BACKENDS": [f"{_OTHER}Filter"],
    "DEFAULT_SCHEMA_CLASS": "rest_framework.schemas.inspectors.ViewInspector",
    "DEFAULT_THROTTLE_RATES": {"user": "1/day", "anon": "1/day"},
    "NUM_PROXIES": 3,
    "PAGE_SIZE": 1,
    "SEARCH_PARAM": "q",
    "ORDERING_PARAM": "sort",
    "DEFAULT_VERSION": "9.9",
    "ALLOWED_VERSIONS": ["9.9"],
    "VERSION_PARAM": "v",
    "UNAUTHENTICATED_USER": None,
    "UNAUTHENTICATED_TOKEN": dict,
    "VIEW_NAME_FUNCTION": f"{_OTHER}fails",
    "VIEW_DESCRIPTION_FUNCTION": f"{_OTHER}fails",
    "EXCEPTION_HANDLER": f"{_OTHER}fails",
    "NON_FIELD_ERRORS_KEY": "__all__",
    "LIST_SERIALIZER_ERRORS_AS_DICT": False,
    "TEST_REQUEST_RENDERER_CLASSES": [
        "rest_framework.renderers.JSONRenderer",
        "rest_framework.renderers.MultiPartRenderer",
    ],
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
    "URL_FORMAT_OVERRIDE": None,
    "FORMAT_SUFFIX_KWARG": None,
    "URL_FIELD_NAME": "href",
    "DATE_FORMAT": "%d.%m.%Y",
    "DATE_INPUT_FORMATS": ["%d.%m.%Y"],
    "DATETIME_FORMAT": "%d.%m.%Y",
    "DATETIME_INPUT_FORMATS": ["%d.%m.%Y"],
    "TIME_FORMAT": "%H",
    "TIME_INPUT_FORMATS": ["%H"],
    "DURATION_FORMAT": "iso-8601",
    "UNICODE_JSON": False,
    "COMPACT_JSON": False,
    "STRICT_JSON": False,
    "COERCE_DECIMAL_TO_STRING": False,
    "COERCE_BIGINT_TO_STRING": True,
    "UPLOADED_FILES_USE_URL": False,
    "HTML_SELECT_CUTOFF": 1,
    "HTML_SELECT_CUTOFF_TEXT": "more",
    "SCHEMA_COERCE_PATH_PK": False,
    "SCHEMA_COERCE_METHOD_NAMES": {},
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "SERVE_PERMISSIONS": [f"{_OTHER}Denied"],
    "SERVE_PUBLIC": False,
    "SERVE_URLCONF": "tests.integrations.urls",
    "SERVE_INCLUDE_SCHEMA": False,
    "DEFAULT_GENERATOR_CLASS": f"{_OTHER}fails",
    "SCHEMA_PATH_PREFIX": "/x",
    "COMPONENT_SPLIT_REQUEST": True,
    "CAMELIZE_NAMES": True,
    "PREPROCESSING_HOOKS": [f"{_OTHER}fails"],
    "POSTPROCESSING_HOOKS": [f"{_OTHER}fails"],
}
