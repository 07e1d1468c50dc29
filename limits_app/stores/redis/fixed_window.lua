-- Fixed window, as engine/algorithms/windows.py. Numbers: start of the window, amount in it.
function current.fixed_window(record, at, _, _, window)
  if record[at] - now <= window then return false end
  record[at] = now
  return true
end

function algorithms.fixed_window(verb, record, at, amount, _, capacity, window)
  local start, count = record[at], record[at + 1]
  local has_ended = now - start >= window
  if verb == 'share' then return has_ended and 0 or count / capacity end
  if verb == 'settle' and amount <= 0 then return 0 end
  if verb == 'undo' and (has_ended or charged_at < start) then return 0 end
  if (verb == 'take' or verb == 'settle') and (has_ended or count == 0) then start, count = now, 0 end
  if verb == 'take' and count + amount > capacity then return nil end
  record[at], record[at + 1] = start, math.min(math.max(count + amount, 0), MOST_DEBT)
  return start + window
end
