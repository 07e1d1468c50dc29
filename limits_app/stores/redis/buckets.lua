-- Token bucket and leaky bucket, as core/algorithms/buckets.py. Parameters: parts per tick, length of a tick, full.
local function read_bucket(record, place)
  local level, tick = unpack_from('<I8I8', record, place)
  return {level = level, tick = tick}
end

local function write_bucket(state)
  return pack('<I8I8', state.level, state.tick)
end

-- Let the level drain until now.
local function drain(limit)
  local state, rate, tick_us = limit.state, limit.a, limit.b
  local tick = (now - now % tick_us) / tick_us
  if tick > state.tick then
    state.level, state.tick = max(state.level - (tick - state.tick) * rate, 0), tick
  end
end

-- Add to the level. What is charged to a level that may run dry within this tick drains from the next whole tick on.
local function fill(limit, amount)
  local state, rate, tick_us = limit.state, limit.a, limit.b
  if amount > 0 then
    drain(limit)
    if state.level < rate then state.tick = max(state.tick, -floor(-now / tick_us)) end
  end
  state.level = min(max(state.level + amount, 0), MOST_DEBT)
  return (state.tick + state.level / rate + 1) * tick_us
end

local function take_from_bucket(limit, amount)
  local state, full = limit.state, limit.c
  local level, tick = state.level, state.tick
  drain(limit)
  if state.level + amount > full then
    state.level, state.tick = level, tick
    return nil
  end
  return fill(limit, amount)
end

local function share_of_bucket(limit)
  drain(limit)
  return limit.state.level / limit.c
end

algorithms.token_bucket = {
  read = read_bucket, write = write_bucket, take = take_from_bucket, settle = fill, share = share_of_bucket,
}

algorithms.leaky_bucket = {
  read = read_bucket, write = write_bucket, take = take_from_bucket, share = share_of_bucket,
  settle = function(limit, change)
    if change < 0 then return 0 end
    return fill(limit, change)
  end,
  credit = fill,
}
