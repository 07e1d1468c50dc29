"""The Celery integration: tasks that run when their limits admit them, and wait in the broker until then.

`demand` reads from the arguments of a call which entity is charged how much, and `task` acquires that;
`services.task_waiting` computes when a rejected task is tried again.
"""

from __future__ import annotations

from limits_app.integrations.celery.demand import Demand
from limits_app.integrations.celery.task import LimitedTask, TaskRefused, limited_task
from limits_app.integrations.celery.task_limits import TaskLimits

__all__ = ["Demand", "LimitedTask", "TaskLimits", "TaskRefused", "limited_task"]
