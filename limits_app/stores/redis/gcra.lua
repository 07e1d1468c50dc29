-- GCRA, as core/algorithms/gcra.py. Numbers: the arrival time as tick and parts of a tick, and the tick when it was set.

-- How far the arrival time is ahead of a time, in parts.
local function ahead(record, at, time, rate, tick_us)
  local tick = math.max((time - time % tick_us) / tick_us, record[at + 2])
  return record[at] < tick and 0 or (record[at] - tick) * rate + record[at + 1]
end

-- Move the arrival time, which is `before` parts ahead.
local function move(record, at, time, before, change, rate, tick_us)
  local tick = (time - time % tick_us) / tick_us
  if tick < record[at + 2] then
    tick = record[at + 2]
  elseif before < rate then
    tick = -math.floor(-time / tick_us)
  end
  local parts = (before + change) % rate
  record[at], record[at + 1], record[at + 2] = tick + (before + change - parts) / rate, parts, tick
  return (record[at] + 1) * tick_us
end

algorithms.gcra = {
  take = function(record, at, amount, rate, tick_us, full)
    local before = ahead(record, at, now, rate, tick_us)
    if before + amount > full then return nil end
    return amount == 0 and 0 or move(record, at, now, before, amount, rate, tick_us)
  end,
  settle = function(record, at, change, rate, tick_us)
    local time = change > 0 and now or record[at + 2] * tick_us
    local before = ahead(record, at, time, rate, tick_us)
    return move(record, at, time, before, math.min(math.max(change, -before), MOST_DEBT - before), rate, tick_us)
  end,
  share = function(record, at, rate, tick_us, full) return ahead(record, at, now, rate, tick_us) / full end,
}
