"""The Celery way in: tasks that run when limits admit them, and wait in the broker until then.

A call goes this way: `demand` reads from its arguments who is charged how much, `task` asks, and where it is refused
`line` says when it is its turn.
"""

from __future__ import annotations

from limits_app.integrations.celery.demand import Demand
from limits_app.integrations.celery.task import LimitedTask, TaskRefused, limited_task
from limits_app.integrations.celery.task_limits import TaskLimits

__all__ = ["Demand", "LimitedTask", "TaskLimits", "TaskRefused", "limited_task"]
