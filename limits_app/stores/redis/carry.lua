-- Reading states that another rule has written, since the definition of a limit was changed: its use is carried over to
-- the present rule, as `Rule.carry` does it.
--
-- ARGV from 4 on are pairs: a calendar, as in the tag of a quota, and four of its boundaries, two of them after now.
local calendars = {}
for index = 4, #ARGV, 2 do
  local bounds = {unpack_from('<dddd', ARGV[index + 1])}
  if bounds[1] <= now and now < bounds[3] then calendars[ARGV[index]] = bounds end
end

-- The rule that has written a value, and the state, whose log is under `key` if it has one; nil where an unknown version of these scripts has written it.
local function rule_of(key, value)
  local letter = sub(value, 5, 5)
  if not algorithms[letter] then return nil end
  local rule, parameters = {}, {unpack_from('<' .. tags[letter], value, 6)}
  rule[LETTER], rule[KEY], rule[TAG] = letter, key, sub(value, 5, table.remove(parameters) - 1)
  if letter ~= 'p' then rule.per_amount = table.remove(parameters, 1) end
  rule[PARTS] = has_parts[letter] and table.remove(parameters, 1) or 1
  rule[A], rule[B], rule[C] = unpack(parameters)
  rule.calendar = letter == 'q' and rule[A] == 0 and rule[B]
  rule.bounds, rule[FORMAT] = rule.calendar and calendars[rule.calendar], '<I4c' .. #rule[TAG] .. formats[letter]
  return rule, {unpack_from(rule[FORMAT], value)}
end

-- An amount in parts of another rule, exactly, rounded up. The quotient is computed bit by bit, as products can be large.
local function scaled(amount, by, of)
  local size = math.abs(amount)
  local rest = math.fmod(size, of)
  local each, quotient, left = (size - rest) / of, 0, 0
  for bit = 52, 0, -1 do
    quotient, left = 2 * quotient, 2 * left
    if math.floor(by / 2 ^ bit) % 2 == 1 then quotient, left = quotient + each, left + rest end
    while left >= of do quotient, left = quotient + 1, left - of end
  end
  if amount < 0 then return -quotient end
  return left > 0 and quotient + 1 or quotient
end

local function carried(limit, rule, state)
  local letter, new_letter, new = rule[LETTER], limit[LETTER], unused(limit)
  if letter == 'p' or new_letter == 'p' then -- permits are held and not used; their leases are counted again
    return new
  end
  local are_read, per_amount = reads[new_letter], unpack_from('<I3', limit[TAG], 2)
  local counts_alike = per_amount == rule.per_amount
  if counts_alike and are_read and are_read == reads[letter] and are_read(state, rule, limit) then
    state[2] = limit[TAG]
    return state
  end
  local used = algorithms[letter]('used', state, 0, rule)
  if counts_alike then
    used = scaled(used, limit[PARTS], rule[PARTS])
  else -- first what the present rule counts, whole units or millionths
    used = scaled(scaled(used, per_amount, rule[PARTS]), 1, rule.per_amount) * limit[PARTS]
  end
  used = math.min(used, MOST_DEBT)
  if used == 0 then return new end
  algorithms[new_letter]('settle', new, used, limit)
  if new_letter == 'q' and letter == 'q' then
    local start, former_ends = state[3], state[4]
    local began = math.max(start, rule[A] > 0 and former_ends - rule[A] or start_of_period(rule, former_ends))
    new[3], new[4] = start, end_of_period(limit, math.max(now, began), former_ends)
    if rule[A] > 0 and limit[A] > 0 and began + limit[A] > now then new[4] = began + limit[A] end
  elseif new_letter == 'q' then
    new[3] = now -- what was charged before is not refunded
  end
  return new
end

-- See load_request(), of which this reads the state of a limit. Returns the calendar that is needed, if it is missing.
function written_by_others(scope, place, value, settles)
  local limit = scope.limits[place]
  local rule, state = rule_of(scope.key .. ':log:' .. limit[FIELD], value)
  if not rule then
    scope.states[place] = unused(limit)
    return nil
  end
  if rule.calendar and not rule.bounds then return rule.calendar end
  if rule[LETTER] ~= 'p' then current[rule[LETTER]](state, rule) end
  if settles then
    scope.others = scope.others or {}
    scope.others[place], scope.states[place] = rule, state
  else
    local letter, new = limit[LETTER], carried(limit, rule, state)
    scope.states[place], scope.is_moved = new, true
    local full_at = letter == 'p' and now + limit[A] or algorithms[letter]('credit', {unpack(new)}, 0, limit)
    scope.full_at = math.max(scope.full_at, full_at)
  end
end
