-- Permits, as core/algorithms/permits.py. Parameters: capacity, length of a lease, longest time of holding (0: no limit).
-- The leases are in a sorted set by the time at which they expire; a member is holder, amount, and latest end.
local function lease_of(limit, amount, since)
  local hold_us = limit.c
  return holder .. pack('<dd', amount, hold_us > 0 and since + hold_us or 9007199254740992)
end

algorithms.permits = {
  read = function(record, place)
    local held, holders, fence, earliest = unpack_from('<I8I4I8I8', record, place)
    return {held = held, holders = holders, fence = fence, earliest = earliest}
  end,
  write = function(state)
    return pack('<I8I4I8I8', state.held, state.holders, state.fence, state.earliest)
  end,
  reclaim = function(limit)
    local state, is_new = limit.state, limit.scope.is_new
    -- The record may have been evicted, and its leases not.
    if not is_new and (state.held == 0 or state.earliest > now) then return false end
    call('ZREMRANGEBYSCORE', limit.key, '-inf', whole(now))
    local leases = call('ZRANGE', limit.key, 0, -1, 'WITHSCORES')
    local held = 0
    for index = 1, #leases, 2 do held = held + unpack_from('<d', leases[index], 17) end
    state.held, state.holders, state.earliest = held, #leases / 2, tonumber(leases[2] or 0)
    return not is_new or held > 0
  end,
  take = function(limit, amount)
    local state, lease_us = limit.state, limit.b
    local held, ends = state.held, now + lease_us
    if held + amount > limit.a then return nil end
    if held == 0 or ends < state.earliest then state.earliest = ends end
    -- A fence is at least the clock, so that it still grows after idle state was removed.
    state.held, state.holders, state.fence = held + amount, state.holders + 1, max(now, state.fence + 1)
    write_later('ZADD', limit.key, whole(ends), lease_of(limit, amount, now))
    write_later('PEXPIRE', limit.key, milliseconds(idle_us(lease_us)))
    return ends
  end,
  settle = function(limit, change)
    local state = limit.state
    if call('ZREM', limit.key, lease_of(limit, -change, charged_at)) == 0 then
      limit.lease_was_lost = true
      return 0
    end
    state.held, state.holders = max(state.held + change, 0), max(state.holders - 1, 0)
    return now + limit.b
  end,
  share = function(limit)
    local state, held = limit.state, limit.state.held
    if held > 0 and state.earliest <= now then
      held = 0
      for _, member in ipairs(call('ZRANGEBYSCORE', limit.key, '(' .. whole(now), '+inf')) do
        held = held + unpack_from('<d', member, 17)
      end
    end
    return held / limit.a
  end,
}
