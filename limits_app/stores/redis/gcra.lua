-- As core/algorithms/gcra.py: (tick, parts, last).
local function ahead(s, o, now, rate, tick_us)
  local tick = max((now - now % tick_us) / tick_us, s[o + 2])
  if s[o] < tick then return 0 end
  return (s[o] - tick) * rate + s[o + 1]
end

local function move(s, o, now, before, change, rate, tick_us)
  local tick = (now - now % tick_us) / tick_us
  if tick < s[o + 2] then
    tick = s[o + 2]
  elseif before < rate then
    tick = -floor(-now / tick_us)
  end
  local after = before + change
  local parts = after % rate
  s[o], s[o + 1], s[o + 2] = tick + (after - parts) / rate, parts, tick
  return (s[o] + 1) * tick_us
end

-- @take
function take.gcra(s, o, now, amount, rate, tick_us, full)
  local before = ahead(s, o, now, rate, tick_us)
  if before + amount > full then return nil end
  if amount == 0 then return 0 end
  return move(s, o, now, before, amount, rate, tick_us)
end

-- @settle undo credit
function settle.gcra(s, o, now, change, rate, tick_us)
  if change <= 0 then now = s[o + 2] * tick_us end
  local before = ahead(s, o, now, rate, tick_us)
  return move(s, o, now, before, min(max(change, -before), 4503599627370496 - before), rate, tick_us)
end

-- @share
function share.gcra(s, o, now, rate, tick_us, full)
  return ahead(s, o, now, rate, tick_us) / full
end
