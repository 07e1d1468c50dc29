-- Fixed window, as core/algorithms/fixed_window.py. Numbers: start of the window, amount in it.

-- The current window, or one that starts now.
local function current_window(record, at, window)
  local start, count = record[at], record[at + 1]
  if count == 0 or now - start >= window then return now, 0 end
  return start, count
end

local function credit_window(record, at, change, _, window)
  record[at + 1] = math.max(record[at + 1] + change, 0)
  return record[at] + window
end

algorithms.fixed_window = {
  take = function(record, at, amount, capacity, window)
    local start, count = current_window(record, at, window)
    if count + amount > capacity then return nil end
    record[at], record[at + 1] = start, count + amount
    return start + window
  end,
  settle = function(record, at, change, _, window)
    if change <= 0 then return 0 end
    local start, count = current_window(record, at, window)
    record[at], record[at + 1] = start, math.min(count + change, MOST_DEBT)
    return start + window
  end,
  credit = credit_window,
  undo = function(record, at, change, _, window)
    if record[at] > charged_at or now - record[at] >= window then return 0 end
    return credit_window(record, at, change, _, window)
  end,
  share = function(record, at, capacity, window) return now - record[at] < window and record[at + 1] / capacity or 0 end,
}
