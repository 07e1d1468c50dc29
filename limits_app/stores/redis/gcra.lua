-- GCRA, as core/algorithms/gcra.py. State: the arrival time as tick and parts of a tick, and the tick when it was set.

-- How far the arrival time is ahead of a time, in parts.
local function ahead(state, time, rate, tick_us)
  local tick = max((time - time % tick_us) / tick_us, state[3])
  return state[1] < tick and 0 or (state[1] - tick) * rate + state[2]
end

-- Move the arrival time, which is `before` parts ahead.
local function move(state, time, before, change, rate, tick_us)
  local tick = (time - time % tick_us) / tick_us
  if tick < state[3] then
    tick = state[3]
  elseif before < rate then
    tick = -floor(-time / tick_us)
  end
  local parts = (before + change) % rate
  state[1], state[2], state[3] = tick + (before + change - parts) / rate, parts, tick
  return (state[1] + 1) * tick_us
end

algorithms.gcra = {
  format = '<I8I8I8',
  take = function(state, amount, rate, tick_us, full)
    local before = ahead(state, now, rate, tick_us)
    if before + amount > full then return nil end
    return amount == 0 and 0 or move(state, now, before, amount, rate, tick_us)
  end,
  settle = function(state, change, rate, tick_us)
    local time = change > 0 and now or state[3] * tick_us
    local before = ahead(state, time, rate, tick_us)
    return move(state, time, before, min(max(change, -before), MOST_DEBT - before), rate, tick_us)
  end,
  share = function(state, rate, tick_us, full) return ahead(state, now, rate, tick_us) / full end,
}
