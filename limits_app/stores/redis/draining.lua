-- What token bucket and leaky bucket share, as core/algorithms/draining.py: (level, tick).
-- Here as in all twins: s are the states of a scope, of which ours start at o; what is returned is about when the
-- state cannot be told from an unused one, or nil when the amount does not fit now.
local function drained(s, o, now, rate, tick_us)
  local level, last = s[o], s[o + 1]
  local tick = (now - now % tick_us) / tick_us
  if tick > last then
    level, last = level - (tick - last) * rate, tick
    if level < 0 then level = 0 end
  end
  return level, last
end

-- The next whole tick: from there on drains what is charged to a level that may run dry within this one.
local function started(level, last, now, rate, tick_us)
  return level < rate and max(last, -floor(-now / tick_us)) or last
end

-- @usual
local level, last = unpack_from('<I7I7', raw, 11)
local tick = (now - now % b) / b
if tick > last then level, last = max(level - (tick - last) * a, 0), tick end
if level < a then last = max(last, -floor(-now / b)) end
level = level + amount
if level <= c then
  full, after = (last + level / a + 1) * b, pack('<c6I4I7I7', layout, lives_until, level, last)
end

-- @take
local function take_draining(s, o, now, amount, rate, tick_us, full)
  local level, last = drained(s, o, now, rate, tick_us)
  if amount > 0 then last = started(level, last, now, rate, tick_us) end
  level = level + amount
  if level > full then return nil end
  s[o], s[o + 1] = level, last
  return (last + level / rate + 1) * tick_us
end

-- @settle undo credit
local function settle_draining(s, o, now, change, rate, tick_us)
  local level, last = s[o], s[o + 1]
  if change > 0 then
    level, last = drained(s, o, now, rate, tick_us)
    last = started(level, last, now, rate, tick_us)
  end
  level = min(max(level + change, 0), 4503599627370496)
  s[o], s[o + 1] = level, last
  return (last + level / rate + 1) * tick_us
end

-- @share
local function share_draining(s, o, now, rate, tick_us, full)
  return drained(s, o, now, rate, tick_us) / full
end
