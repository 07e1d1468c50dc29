"""A Redis transport for Celery's workers that loses nothing, and in which refused tasks wait on the server.

Kombu's own takes a message from its list and then notes that it is not acknowledged, so a worker that is killed in
between loses it; a worker that is busy leaves messages between the two for as long as it is. And a task that waits for
its time waits in the memory of a worker, whose death holds it up for a visibility timeout.
Here one script takes a message and notes it, and what waits stays in a sorted set beside its list until its time comes.

`broker_transport = "limits_app.integrations.celery_redis:Transport"`; the address of the broker stays what it is.
Needs Redis 6.2, and all workers of a queue must have it; whoever only sends tasks need not.
Weakness: an idle worker asks ten times a second.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from kombu.transport import redis
from kombu.utils.json import dumps

__all__ = ["Channel", "Transport", "held_back"]

_WAIT_UNTIL: Final = "limits_wait_until"
_SHORTEST_SECONDS: Final = 0.001
_LOOK_SECONDS: Final = 0.1
"""How long is waited at most, for one list, until all lists and all that wait are looked at again."""

_HOLD: Final = """
local now = redis.call('TIME')
redis.call('ZADD', KEYS[1], now[1] + now[2] / 1000000 + ARGV[1], ARGV[2])
"""

_RIPEN: Final = """
-- KEYS are lists, and then the sets of those who wait for each. Says in how many seconds the next one is due.
local now, lists, soonest = redis.call('TIME'), #KEYS / 2, ''
now = now[1] + now[2] / 1000000
for place = 1, lists do
  local list, waiting = KEYS[place], KEYS[lists + place]
  local due = redis.call('ZRANGEBYSCORE', waiting, '-inf', now, 'LIMIT', 0, 100)
  for last = #due, 1, -1 do
    redis.call('RPUSH', list, due[last])
    redis.call('ZREM', waiting, due[last])
  end
  local next = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
  if next and (soonest == '' or next - now < soonest) then
    soonest = next - now
  end
end
return tostring(soonest)
"""

_TAKE: Final = """
-- KEYS are what is not acknowledged, the time since when, and lists in the order in which they are to be emptied;
-- ARGV[1] is the time now.
for place = 3, #KEYS do
  local message = redis.call('LINDEX', KEYS[place], -1)
  if message then
    local sound, content = pcall(cjson.decode, message)
    if sound then
      local home, tag = content['properties']['delivery_info'], content['properties']['delivery_tag']
      local exchange, key = cjson.encode(home['exchange']), cjson.encode(home['routing_key'])
      redis.call('HSET', KEYS[1], tag, '[' .. message .. ',' .. exchange .. ',' .. key .. ']')
      redis.call('ZADD', KEYS[2], ARGV[1], tag)
    end
    redis.call('RPOP', KEYS[place])
    return {KEYS[place], message}
  end
end
return false
"""


def held_back(seconds: float) -> dict[str, float]:
    """The header of a message that is to wait so long on the server."""
    # Unlike a span, a moment is over when the message is sent once more with the headers that it had.
    return {_WAIT_UNTIL: time.time() + seconds}


class Channel(redis.Channel):  # type: ignore[misc]  # Kombu ships no types
    """Takes messages and notes them in one step, and holds those back that are to wait."""

    unacked_mutex_expire = 5
    """Seconds after which the others look for lost messages when the one that did so was killed; Kombu says 300."""
    _next_look = 0.0

    def _brpop_start(self, timeout: float | None = None) -> None:  # noqa: ARG002 - as Kombu calls it
        """Ask for a message: wait until there may be one, which takes nothing, and then take it.

        `BLMOVE` from the end of a list to its end changes nothing, but waits until something is there.
        """
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        lists = [self._q_for_pri(queue, step) for step in self.priority_steps for queue in queues]
        full, waiting, notes = (
            [self.global_keyprefix + key for key in keys]
            for keys in (lists, map(_waiting, lists), (self.unacked_key, self.unacked_index_key))
        )
        connection = self._in_poll = self.client.connection
        now = self._brpop_sent_at = time.monotonic()
        patience = min(max(self._next_look - now, _SHORTEST_SECONDS), _LOOK_SECONDS)
        connection.send_command("BLMOVE", full[0], full[0], "RIGHT", "RIGHT", patience)
        connection.send_command("EVAL", _RIPEN, len(full + waiting), *full, *waiting)
        connection.send_command("EVAL", _TAKE, len(notes + full), *notes, *full, time.time())

    def _brpop_read(self, **options: Any) -> Any:
        """Read all answers; the last one is what `BRPOP` would have said."""
        try:
            due = self._answered("BLMOVE", "EVAL")
        except self.connection_errors:
            self.client.connection.disconnect()
            self._in_poll = None
            raise
        self._next_look = time.monotonic() + float(due or _LOOK_SECONDS)
        taken = super()._brpop_read(**options)
        # Where one was there may be more, and not only in the list that is waited for.
        self._next_look = 0.0
        return taken

    def _answered(self, *commands: str) -> Any:
        """The answer to the last of some commands. What is wrong with these is wrong with the one behind them too."""
        answer = None
        for command in commands:
            with suppress(self.ResponseError):
                answer = self.client.parse_response(self.client.connection, command)
        return answer

    def _put(self, queue: str, message: Mapping[str, Any], **options: Any) -> None:
        """Put a message into its list, or beside it until its time has come."""
        seconds = (message.get("headers") or {}).get(_WAIT_UNTIL, 0) - time.time()
        if seconds <= 0:
            super()._put(queue, message, **options)
            return
        waiting = _waiting(self._q_for_pri(queue, self._get_message_priority(message, reverse=False)))
        with self.conn_or_acquire() as client:
            client.execute_command("EVAL", _HOLD, 1, self.global_keyprefix + waiting, seconds, dumps(message))

    def _size(self, queue: str) -> int:
        with self.conn_or_acquire() as client:
            waiting: int = sum(client.zcard(self.global_keyprefix + key) for key in self._waiting_of(queue))
        lists: int = super()._size(queue)
        return lists + waiting

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return bool(super()._has_queue(queue, **options) or self._size(queue))

    def _purge(self, queue: str) -> int:
        size = self._size(queue)
        self._forget_waiting(queue)
        super()._purge(queue)
        return size

    def _delete(self, queue: str, *args: Any, **options: Any) -> None:
        self._forget_waiting(queue)
        super()._delete(queue, *args, **options)

    def _forget_waiting(self, queue: str) -> None:
        with self.conn_or_acquire() as client:
            client.delete(*self._waiting_of(queue))

    def _waiting_of(self, queue: str) -> list[str]:
        return [_waiting(self._q_for_pri(queue, step)) for step in self.priority_steps]


class Transport(redis.Transport):  # type: ignore[misc]
    """Kombu's transport for Redis, with this channel."""

    Channel = Channel


def _waiting(key: str) -> str:
    return f"{key}:waiting"
