-- Fixed window, as engine/algorithms/windows.py. Numbers: start of the window, amount in it. Parameter: window.
function algorithms.f(verb, state, amount, rule)
  local start, count, window = state[3], state[4], rule.a
  if verb == 'current' then
    if start - now <= window then return false end
    state[3] = now
    return true
  end
  local has_ended = now - start >= window
  if verb == 'used' then return has_ended and 0 or count end
  if verb == 'settle' and amount <= 0 then return 0 end
  if verb == 'undo' and (has_ended or charged_at < start and rule.window ~= start) then return 0 end
  if (verb == 'take' or verb == 'settle') and (has_ended or count == 0) then start, count = now, 0 end
  if verb == 'take' and count + amount > rule.capacity then return nil end
  state[3], state[4] = start, math.min(math.max(count + amount, 0), MOST_DEBT)
  return state[4] > 0 and start + window or 0
end
