-- Fixed window, as core/algorithms/fixed_window.py. State: start of the window, amount in it.

-- The current window, or one that starts now.
local function current_window(state, window)
  local start, count = state[1], state[2]
  if count == 0 or now - start >= window then return now, 0 end
  return start, count
end

local function credit_window(state, change, _, window)
  state[2] = max(state[2] + change, 0)
  return state[1] + window
end

algorithms.fixed_window = {
  format = '<I8I8',
  take = function(state, amount, capacity, window)
    local start, count = current_window(state, window)
    if count + amount > capacity then return nil end
    state[1], state[2] = start, count + amount
    return start + window
  end,
  settle = function(state, change, _, window)
    if change <= 0 then return 0 end
    local start, count = current_window(state, window)
    state[1], state[2] = start, min(count + change, MOST_DEBT)
    return start + window
  end,
  credit = credit_window,
  undo = function(state, change, _, window)
    if state[1] > charged_at or now - state[1] >= window then return 0 end
    return credit_window(state, change, _, window)
  end,
  share = function(state, capacity, window) return now - state[1] < window and state[2] / capacity or 0 end,
}
