-- Token bucket and leaky bucket, as core/algorithms/buckets.py. Numbers: level, tick.

-- The level that has drained until now, and the tick of that.
local function drained(record, at, rate, tick_us)
  local level, last = record[at], record[at + 1]
  local tick = (now - now % tick_us) / tick_us
  if tick > last then
    level, last = math.max(level - (tick - last) * rate, 0), tick
  end
  return level, last
end

-- Add to the level. Amounts on a level that may run dry within this tick drain from the next whole tick on.
local function fill(record, at, level, tick, amount, rate, tick_us)
  if amount > 0 and level < rate then tick = math.max(tick, -math.floor(-now / tick_us)) end
  level = math.min(math.max(level + amount, 0), MOST_DEBT)
  record[at], record[at + 1] = level, tick
  return (tick + level / rate + 1) * tick_us
end

local function take(record, at, amount, rate, tick_us, full)
  local level, tick = drained(record, at, rate, tick_us)
  if level + amount > full then return nil end
  return fill(record, at, level, tick, amount, rate, tick_us)
end

local function settle(record, at, change, rate, tick_us)
  local level, tick = record[at], record[at + 1]
  if change > 0 then level, tick = drained(record, at, rate, tick_us) end
  return fill(record, at, level, tick, change, rate, tick_us)
end

local function share(record, at, rate, tick_us, full) return drained(record, at, rate, tick_us) / full end

algorithms.token_bucket = {take = take, settle = settle, share = share}
algorithms.leaky_bucket = {
  take = take, credit = settle, share = share,
  settle = function(record, at, change, ...) return change < 0 and 0 or settle(record, at, change, ...) end,
}
