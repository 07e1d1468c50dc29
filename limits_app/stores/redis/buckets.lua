-- Token bucket and leaky bucket, as core/algorithms/buckets.py. State: level, tick.

-- The level that has drained until now, and the tick of that.
local function drained(state, rate, tick_us)
  local level, last = state[1], state[2]
  local tick = (now - now % tick_us) / tick_us
  if tick > last then
    level, last = max(level - (tick - last) * rate, 0), tick
  end
  return level, last
end

-- Add to the level. Amounts on a level that may run dry within this tick drain from the next whole tick on.
local function fill(state, level, tick, amount, rate, tick_us)
  if amount > 0 and level < rate then tick = max(tick, -floor(-now / tick_us)) end
  level = min(max(level + amount, 0), MOST_DEBT)
  state[1], state[2] = level, tick
  return (tick + level / rate + 1) * tick_us
end

local function take_from_bucket(state, amount, rate, tick_us, full)
  local level, tick = drained(state, rate, tick_us)
  if level + amount > full then return nil end
  return fill(state, level, tick, amount, rate, tick_us)
end

local function settle_bucket(state, change, rate, tick_us)
  local level, tick = state[1], state[2]
  if change > 0 then level, tick = drained(state, rate, tick_us) end
  return fill(state, level, tick, change, rate, tick_us)
end

local function share_of_bucket(state, rate, tick_us, full) return drained(state, rate, tick_us) / full end

algorithms.token_bucket = {
  format = '<I8I8', take = take_from_bucket, settle = settle_bucket, share = share_of_bucket,
}
algorithms.leaky_bucket = {
  format = '<I8I8', take = take_from_bucket, credit = settle_bucket, share = share_of_bucket,
  settle = function(state, change, ...) return change < 0 and 0 or settle_bucket(state, change, ...) end,
}
