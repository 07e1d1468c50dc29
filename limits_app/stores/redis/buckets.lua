-- Token bucket, GCRA and leaky bucket, as engine/algorithms/buckets.py: one rule, with refunds as `b` and without them as
-- `l`. Numbers: level, tick. Parameters: rate, length of a tick, window.
function algorithms.b(verb, state, amount, rule)
  local level, tick, rate, tick_us = state[3], state[4], rule.a, rule.b
  if verb == 'current' then
    if tick * tick_us - now <= rule.c then return false end
    state[4] = -math.floor(-now / tick_us)
    return true
  end
  if verb == 'settle' and amount < 0 and rule.letter == 'l' then return 0 end
  if verb == 'take' or verb == 'used' or amount > 0 then -- the level has drained until now
    local this_tick = (now - now % tick_us) / tick_us
    if this_tick > tick then level, tick = math.max(level - (this_tick - tick) * rate, 0), this_tick end
  end
  if verb == 'used' then return level end
  if verb == 'take' and level + amount > rule.capacity then return nil end
  if verb == 'undo' then -- what was in use before the charge drains first, and then the charge itself
    local passed = math.floor(now / tick_us) - math.floor(charged_at / tick_us)
    amount = math.min(amount + math.max(passed * rate - rule.before, 0), 0)
  end
  if amount ~= 0 then
    -- Amounts on a level that may run dry within this tick drain from the next whole tick on.
    if amount > 0 and level < rate then tick = math.max(tick, -math.floor(-now / tick_us)) end
    level = math.min(math.max(level + amount, 0), MOST_DEBT)
    state[3], state[4] = level, tick
  end
  return (tick + level / rate + 1) * tick_us
end
algorithms.l = algorithms.b
