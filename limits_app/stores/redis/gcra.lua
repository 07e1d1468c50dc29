-- GCRA, as core/algorithms/gcra.py. Parameters: parts per tick, length of a tick, full.
-- The arrival time is `tick` and `parts` of a tick, and was set at `last`.

-- How far the arrival time is ahead of a time, in parts.
local function ahead(limit, time)
  local state, rate, tick_us = limit.state, limit.a, limit.b
  local tick = max((time - time % tick_us) / tick_us, state.last)
  return state.tick < tick and 0 or (state.tick - tick) * rate + state.parts
end

-- Move the arrival time, which is `before` parts ahead.
local function move(limit, time, before, change)
  local state, rate, tick_us = limit.state, limit.a, limit.b
  local tick = (time - time % tick_us) / tick_us
  if tick < state.last then
    tick = state.last
  elseif before < rate then
    tick = -floor(-time / tick_us)
  end
  local after = before + change
  local parts = after % rate
  state.tick, state.parts, state.last = tick + (after - parts) / rate, parts, tick
  return (state.tick + 1) * tick_us
end

algorithms.gcra = {
  read = function(record, place)
    local tick, parts, last = unpack_from('<I8I8I8', record, place)
    return {tick = tick, parts = parts, last = last}
  end,
  write = function(state)
    return pack('<I8I8I8', state.tick, state.parts, state.last)
  end,
  take = function(limit, amount)
    local before = ahead(limit, now)
    if before + amount > limit.c then return nil end
    if amount == 0 then return 0 end
    return move(limit, now, before, amount)
  end,
  settle = function(limit, change)
    local time = change > 0 and now or limit.state.last * limit.b
    local before = ahead(limit, time)
    return move(limit, time, before, min(max(change, -before), MOST_DEBT - before))
  end,
  share = function(limit)
    return ahead(limit, now) / limit.c
  end,
}
