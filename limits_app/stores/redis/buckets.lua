-- Token bucket, GCRA and leaky bucket, as engine/algorithms/buckets.py: one rule, with refunds as `token_bucket` and without
-- them as `leaky_bucket`. Numbers: level, tick.
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
  if amount ~= 0 then
    -- Amounts on a level that may run dry within this tick drain from the next whole tick on.
    if amount > 0 and level < rate then tick = math.max(tick, -math.floor(-now / tick_us)) end
    level = math.min(math.max(level + amount, 0), MOST_DEBT)
    record[at], record[at + 1] = level, tick
  end
  return (tick + level / rate + 1) * tick_us
end

function algorithms.leaky_bucket(verb, record, at, amount, ...)
  if verb == 'settle' and amount < 0 then return 0 end
  return algorithms.token_bucket(verb, record, at, amount, ...)
end
