-- As core/algorithms/fixed_window.py: (start of the window, amount in it).
-- @usual
local start, count = unpack_from('<I7I7', raw, 11)
if count > 0 and now - start < b and count + amount <= a then
  full, after = start + b, pack('<c6I4I7I7', layout, lives_until, start, count + amount)
end

-- @take
function take.fixed_window(s, o, now, amount, capacity, window)
  local start, count = s[o], s[o + 1]
  if count == 0 or now - start >= window then start, count = now, 0 end
  count = count + amount
  if count > capacity then return nil end
  s[o], s[o + 1] = start, count
  return start + window
end

-- @settle
function settle.fixed_window(s, o, now, change, capacity, window)
  if change <= 0 then return 0 end
  local start, count = s[o], s[o + 1]
  if count == 0 or now - start >= window then start, count = now, 0 end
  s[o], s[o + 1] = start, min(count + change, 4503599627370496)
  return start + window
end

-- @undo
function settle.fixed_window(s, o, now, change, capacity, window)
  if s[o] > admitted_at or now - s[o] >= window then return 0 end
  s[o + 1] = max(s[o + 1] + change, 0)
  return s[o] + window
end

-- @credit
function settle.fixed_window(s, o, now, change, capacity, window)
  s[o + 1] = max(s[o + 1] + change, 0)
  return s[o] + window
end

-- @share
function share.fixed_window(s, o, now, capacity, window)
  return now - s[o] < window and s[o + 1] / capacity or 0
end
