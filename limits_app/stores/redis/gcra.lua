-- GCRA, as core/algorithms/gcra.py. Numbers: the arrival time as tick and parts of a tick, and the tick when it was set.
function algorithms.gcra(verb, record, at, amount, rate, tick_us, full)
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
