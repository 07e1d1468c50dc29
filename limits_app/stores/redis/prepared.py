"""Prepared plans: what scripts need to know of a plan, which is the same in each call. No input or output here.

The shape of a plan has what its clients have in common: the description of its limits, and the layout of the numbers
of a request. A plan adds the keys of its scopes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b
from struct import Struct, pack
from typing import Final

from limits_app.engine import HOLDER_LENGTH, LEASE_LEVEL, Amounts, PlannedLimit, PlanShape, RequestPlan, State, label_of
from limits_app.engine.limits import QuotaLimit
from limits_app.stores.redis.commands import KEEP, PreparedScript, ScriptFrame
from limits_app.stores.redis.hints import Calendars
from limits_app.stores.redis.opening import KeyNames
from limits_app.stores.redis.states import StateReader, field_of, numbers_of, tag_of_rule, value_format

VERSION: Final = Struct("<d")
"""What the numbers of each request start with in acquire.lua: the version of the configuration, -1 for any."""

_DIGEST_LENGTH: Final = 4
_NUMBER_BYTES: Final = 8
_MOST_FRAMES: Final = 1024


class PreparedShape:
    """What scripts need to know of the shape of a plan, whichever scopes it is bound to.

    `names` are those of the keys of the store, and `constants` is what each plan of it starts with.
    """

    def __init__(self, shape: PlanShape, names: KeyNames, constants: bytes) -> None:
        self.names, self.constants = names, constants
        self.schemas = shape.schemas
        self.limits = [limit for limit in shape.limits if limit.rule.lua[0] != "blocked"]
        """The limits with a state."""
        self.limit_count = len(shape.limits)
        self.has_blocked = len(self.limits) < self.limit_count
        self.has_permits = bool(shape.permits)
        self.counts_usage = shape.counts_usage
        self.is_credit, self.recorded_us = shape.is_credit, shape.recorded_us
        self.algorithms = frozenset([limit.rule.lua[0] for limit in self.limits] + ["usage"] * self.counts_usage)
        keeps = any(limit.rule.kept_parts for limit in self.limits)
        self.acquiring = self.algorithms.union([KEEP]) if keeps else self.algorithms
        """The files of the script that acquires; the others know no class."""
        self.calendars = Calendars(shape.limits)
        self.keyed = [limit for limit in self.limits if limit.rule.has_log or limit.is_permit]
        """The limits with a key for their log or leases, in the order of these keys."""
        self.counted: dict[int, tuple[str, ...]] = {
            index: tuple([rule.key for rule in schema.rules])
            for index, schema in enumerate(shape.schemas)
            if self.counts_usage and schema.counts_usage
        }
        """The scopes whose usage is counted, by their index, with the keys of their limits."""
        self.description = self._description(shape)
        self.reader = StateReader(self.limits)
        holder = "16s" if self.has_permits else ""
        self.layout = Struct(f"<{len(self.limits)}d{holder}{self.calendars.size}d")
        """How the numbers of a request are packed."""
        self.frames: dict[tuple[object, ...], ScriptFrame] = {}
        """What calls for plans of this shape have in common, by their kind, the tag of their keys and the namespace."""

    def keep_frame(self, kind: tuple[object, ...], frame: ScriptFrame) -> ScriptFrame:
        """Keep the frame of a kind; returns it."""
        if len(self.frames) >= _MOST_FRAMES:
            self.frames.clear()
        self.frames[kind] = frame
        return frame

    def numbers(self, amounts: Amounts, holder: bytes, boundaries: Sequence[int] = ()) -> bytes:
        """Return the numbers of a request: its amounts, its holder, and its boundaries."""
        if self.has_blocked:
            amounts = [amounts[limit.position] for limit in self.limits]
        holders = (holder,) if self.has_permits else ()
        return self.layout.pack(*amounts, *holders, *boundaries)

    def with_blocked(self, states: Sequence[State]) -> list[State]:
        """Return the states of all limits, given those of the limits that have one."""
        by_position = {limit.position: state for limit, state in zip(self.limits, states, strict=True)}
        return [by_position.get(position, ()) for position in range(self.limit_count)]

    def _description(self, shape: PlanShape) -> bytes:
        """Return the description of the request; load_request() in prelude.lua and acquire.lua say what it has."""
        parts, indexes = b"", list(self.counted)
        for index, scope in enumerate(shape.scopes):
            limits = [limit for limit in self.limits if limit.scope_index == index]
            keys = self.counted.get(index, ())
            label = indexes.index(index) if keys else 0
            counted = "\0".join(keys) + ("\0\0" + scope.schema.plan if scope.schema.plan else "")
            digest = blake2b(counted.encode(), digest_size=_DIGEST_LENGTH).digest()
            parts += pack("<4d", len(limits), scope.lasting, len(keys), label) + b"#" + digest
            parts += b"".join([self._limit(limit) for limit in limits])
        return pack("<2d", len(shape.scopes), len(self.limits)) + parts

    def _limit(self, limit: PlannedLimit) -> bytes:
        rule, tag = limit.rule, tag_of_rule(limit.rule)
        capacity, *parameters = numbers_of(rule)
        if limit.level == LEASE_LEVEL:
            parameters.append(1)
        if isinstance(rule.limit, QuotaLimit):
            parameters.append(self.calendars.offset(limit) + HOLDER_LENGTH * self.has_permits)
        key_number = len(self.schemas) + 1 + self.keyed.index(limit) if limit in self.keyed else 0
        usage = (1 + limit.index) * (limit.scope_index in self.counted)
        keep = -1 if rule.is_soft else rule.kept_parts
        numbers = [key_number, keep, usage, rule.parts_per_unit, capacity, *(*parameters, 0, 0, 0)[:3]]
        lua_format, size = value_format(rule)
        head = field_of(rule) + b"\0" + tag[:1] + bytes([len(tag)]) + tag + lua_format + b"\0"
        return head + pack("<9d", size, *numbers)


class Others(IntEnum):
    """What happens to the other requests; see acquire.lua."""

    STAY = 0
    FOLLOW = 1
    ARE_NOT_CHARGED_EITHER = 2


class PreparedPlan:
    """What scripts need to know of a plan: its shape, and the keys of its scopes. On a cluster, these have one tag."""

    def __init__(self, plan: RequestPlan, shape: PreparedShape) -> None:
        self.shape = shape
        self.names = names = shape.names
        self.namespace = plan.namespace
        self.counters = plan.counters
        self.shorts = shorts = plan.short_keys()
        self.tag = names.tag(shorts[0] if shorts else None)
        self.keys = [*map(names.scope, shorts)]
        for limit in shape.keyed:
            name = names.log if limit.rule.has_log else names.leases
            self.keys.append(name(shorts[limit.scope_index], limit.rule.key))
        self.labels = b""
        for index, keys in shape.counted.items():
            self.labels += label_of(plan.scopes[index], keys, shape.schemas[index].plan) + b"\0"
        self.acquire = self._alone(Others.STAY)
        self._settling: dict[bytes, PreparedScript] = {}

    def other_logs(self) -> list[bytes]:
        """Return the keys of the logs that its limits may have had under other rules."""
        return [self.names.log(self.shorts[limit.scope_index], limit.rule.key) for limit in self.shape.limits]

    def looking(self) -> AcquireCall:
        """Return what reads the states of the limits and charges nothing."""
        return self._alone(Others.ARE_NOT_CHARGED_EITHER)

    def _alone(self, others: Others) -> AcquireCall:
        shape, kind = self.shape, (others, self.tag, self.namespace, self.counters)
        frame = shape.frames.get(kind) or shape.keep_frame(kind, acquire_frame([self], others))
        return AcquireCall([shape], frame, self.keys, self.labels)

    def settling(self, verb: bytes) -> PreparedScript:
        """Return the script that settles a claim; settle.lua says what the verbs do."""
        prepared = self._settling.get(verb)
        if prepared is None:
            shape, kind = self.shape, (verb, self.tag, self.counters)
            frame = shape.frames.get(kind) or shape.keep_frame(kind, self._settling_frame(verb))
            prepared = PreparedScript(frame, self.keys, (self.labels,))
            self._settling[verb] = prepared
        return prepared

    def _settling_frame(self, verb: bytes) -> ScriptFrame:
        shape, channel = self.shape, self.names.channel
        head = shape.constants + verb + b"\0" + pack("<dd", shape.recorded_us, len(channel)) + channel
        last = [self.names.usage(self.tag, self.counters)] if shape.counts_usage else ()
        return ScriptFrame("settle", shape.algorithms, head + shape.description, key_count=len(self.keys), last=last)


class AcquireCall(PreparedScript):
    """Prepared arguments of acquire.lua for one plan, or for alternatives of which the first that fits is charged.

    It has their shapes: a reference to a plan, which has its call, would leave new clients to the garbage collector.
    """

    def __init__(
        self, shapes: Sequence[PreparedShape], frame: ScriptFrame, keys: Sequence[bytes], labels: bytes
    ) -> None:
        super().__init__(frame, keys, (labels,))
        self.shapes = shapes


def acquire_frame(plans: Sequence[PreparedPlan], others: Others, *, emptiest_first: bool = False) -> ScriptFrame:
    """Return the frame of a call for some plans, whose keys have one tag; acquire.lua says what its plan has."""
    shape, tag, counts_usage = plans[0].shape, plans[0].tag, any(plan.shape.counts_usage for plan in plans)
    offset = 1 + len(shape.constants) + (3 + 4 * len(plans)) * _NUMBER_BYTES
    text = shape.constants + pack("<3d", len(plans), emptiest_first, others)
    first_key, label = 2, 0
    for plan in plans:
        text += pack("<4d", first_key, offset, label, VERSION.size + plan.shape.layout.size)
        first_key += len(plan.keys)
        offset += len(plan.shape.description)
        label += len(plan.shape.counted)
    # A plan without scopes has no counters.
    last = [shape.names.usage(tag, max([plan.counters for plan in plans]))] if counts_usage else ()
    return ScriptFrame(
        "acquire",
        frozenset[str]().union(*[plan.shape.acquiring for plan in plans]),
        b"".join([text, *[plan.shape.description for plan in plans]]),
        key_count=first_key - 2,
        first=[shape.names.version(tag, plans[0].namespace)],
        last=last,
    )
