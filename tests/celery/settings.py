"""The demo's settings, with a broker, results and limits on the Redis server that the tests start."""

import os

from project.settings import *  # noqa: F403 - settings extend settings

_SERVER = os.environ["LIMITS_TEST_REDIS"]
_BROKER = os.environ.get("LIMITS_TEST_BROKER", f"{_SERVER}/0")

LIMITS = {"STORES": {"default": {"KIND": "redis", "URL": f"{_SERVER}/1"}}}

CELERY_BROKER_URL = _BROKER
CELERY_RESULT_BACKEND = f"{_SERVER}/2"
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_DEDUPLICATE_SUCCESSFUL_TASKS = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_IMPORTS = ["tests.celery.tasks", "limits_app.workers.in_celery"]
if _BROKER.startswith("redis"):
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "visibility_timeout": int(os.environ.get("LIMITS_TEST_VISIBILITY", "3600")),
        # What a killed worker had is looked for every second, and not every hundred.
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
