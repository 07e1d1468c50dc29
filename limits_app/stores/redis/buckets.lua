-- Token bucket, leaky bucket and GCRA, as engine/algorithms/buckets.py and gcra.py. Numbers of the buckets: level, tick.
function current.token_bucket(record, at, _, _, tick_us, _, window)
  if record[at + 1] * tick_us - now <= window then return false end
  record[at + 1] = -math.floor(-now / tick_us)
  return true
end
current.leaky_bucket = current.token_bucket

function algorithms.token_bucket(verb, record, at, amount, _, rate, tick_us, full)
  local level, tick = record[at], record[at + 1]
  if verb == 'take' or verb == 'share' or amount > 0 then -- the level has drained until now
    local this_tick = (now - now % tick_us) / tick_us
    if this_tick > tick then level, tick = math.max(level - (this_tick - tick) * rate, 0), this_tick end
  end
  if verb == 'share' then return level / full end
  if verb == 'take' and level + amount > full then return nil end
  -- Amounts on a level that may run dry within this tick drain from the next whole tick on.
  if amount > 0 and level < rate then tick = math.max(tick, -math.floor(-now / tick_us)) end
  level = math.min(math.max(level + amount, 0), MOST_DEBT)
  record[at], record[at + 1] = level, tick
  return (tick + level / rate + 1) * tick_us
end

function algorithms.leaky_bucket(verb, record, at, amount, ...)
  if verb == 'settle' and amount < 0 then return 0 end
  return algorithms.token_bucket(verb, record, at, amount, ...)
end

-- Numbers of GCRA: the arrival time as tick and parts of a tick, and the tick when it was set.
function current.gcra(record, at, _, _, tick_us, _, window)
  local set_at = record[at + 2]
  if set_at * tick_us - now <= window then return false end
  record[at + 2] = -math.floor(-now / tick_us)
  record[at] = record[at] - set_at + record[at + 2]
  return true
end

function algorithms.gcra(verb, record, at, amount, _, rate, tick_us, full)
  local arrival, set_at = record[at], record[at + 2]
  local time = (verb == 'take' or verb == 'share' or amount > 0) and now or set_at * tick_us
  local tick = (time - time % tick_us) / tick_us
  local latest = math.max(tick, set_at)
  -- How far the arrival time is ahead, in parts.
  local ahead = arrival < latest and 0 or (arrival - latest) * rate + record[at + 1]
  if verb == 'share' then return ahead / full end
  if verb == 'take' and ahead + amount > full then return nil end
  if verb == 'take' and amount == 0 then return 0 end
  if tick >= set_at and ahead < rate then latest = -math.floor(-time / tick_us) end
  ahead = ahead + math.min(math.max(amount, -ahead), MOST_DEBT - ahead)
  local parts = ahead % rate
  record[at], record[at + 1], record[at + 2] = latest + (ahead - parts) / rate, parts, latest
  return (record[at] + 1) * tick_us
end
