"""Simulation: recorded or written usage against proposed limits."""

from __future__ import annotations

from limits_app.services.simulation.events import Event, csv_events, recorded_events
from limits_app.services.simulation.forecast import STEP_SECONDS, can_be_replayed, in_steps, replay_hours
from limits_app.services.simulation.proposal import Proposal
from limits_app.services.simulation.replay import replay
from limits_app.services.simulation.report import EVENTS, Moment, Refused, Report, Total

__all__ = [
    "EVENTS",
    "STEP_SECONDS",
    "Event",
    "Moment",
    "Proposal",
    "Refused",
    "Report",
    "Total",
    "can_be_replayed",
    "csv_events",
    "in_steps",
    "recorded_events",
    "replay",
    "replay_hours",
]
