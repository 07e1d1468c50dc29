-- Fixed window, as core/algorithms/fixed_window.py. Parameters: capacity, length of the window.

-- Add to the count of the current window, or of one that starts now.
local function add_to_window(limit, amount)
  local state, window = limit.state, limit.b
  if state.count == 0 or now - state.start >= window then state.start, state.count = now, 0 end
  state.count = min(state.count + amount, MOST_DEBT)
  return state.start + window
end

local function credit_window(limit, change)
  limit.state.count = max(limit.state.count + change, 0)
  return limit.state.start + limit.b
end

algorithms.fixed_window = {
  read = function(record, place)
    local start, count = unpack_from('<I8I8', record, place)
    return {start = start, count = count}
  end,
  write = function(state)
    return pack('<I8I8', state.start, state.count)
  end,
  take = function(limit, amount)
    local is_current = now - limit.state.start < limit.b
    if (is_current and limit.state.count or 0) + amount > limit.a then return nil end
    return add_to_window(limit, amount)
  end,
  settle = function(limit, change)
    if change <= 0 then return 0 end
    return add_to_window(limit, change)
  end,
  credit = credit_window,
  undo = function(limit, change)
    if limit.state.start > charged_at or now - limit.state.start >= limit.b then return 0 end
    return credit_window(limit, change)
  end,
  share = function(limit)
    return now - limit.state.start < limit.b and limit.state.count / limit.a or 0
  end,
}
