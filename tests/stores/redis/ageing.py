"""Keys that expire as a test moves its clock, although a server expires them by its own."""

from __future__ import annotations

from collections.abc import Sequence

from redis import Redis

from limits_app.testing import FakeClock

AGE = """
local keys = redis.call('KEYS', ARGV[1] .. '*')
for _, key in ipairs(keys) do
  local left = redis.call('PTTL', key)
  if left >= 0 then redis.call('PEXPIRE', key, string.format('%.0f', left - ARGV[2])) end
end
"""
SMALLEST_STEP_US = 1_000_000


class Ageing:
    """Takes the time by which a clock is moved from what the keys of a store have left to live."""

    def __init__(self, clients: Sequence[Redis], prefix: str, clock: FakeClock) -> None:
        self.clients = clients
        self.prefix = prefix
        self.told_at = clock.now_us
        clock.attach(self)

    def moved(self, now: int) -> None:
        """Take it from all keys at once, when it is worth while."""
        if now - self.told_at >= SMALLEST_STEP_US:
            for client in self.clients:
                # Redis 7 would have every key declared on a cluster; this script reads what is there.
                client.eval(AGE, 0, self.prefix, (now - self.told_at) // 1000)
            self.told_at = now
        self.told_at = min(self.told_at, now)

    def count(self) -> int:
        """How many keys there are."""
        return sum(1 for client in self.clients for _ in client.scan_iter(f"{self.prefix}*", 1000))
