-- Token bucket, GCRA and leaky bucket, as engine/algorithms/buckets.py. Numbers: level, tick.
function current.token_bucket(record, at, _, _, tick_us, _, window)
  if record[at + 1] * tick_us - now <= window then return false end
  record[at + 1] = -math.floor(-now / tick_us)
  return true
end
current.gcra, current.leaky_bucket = current.token_bucket, current.token_bucket

local function bucket(refunds)
  return function(verb, record, at, amount, _, rate, tick_us, full)
    if verb == 'settle' and amount < 0 and not refunds then return 0 end
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
end
algorithms.token_bucket, algorithms.leaky_bucket = bucket(true), bucket(false)
algorithms.gcra = algorithms.token_bucket
