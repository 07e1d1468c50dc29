-- Reading states that another rule has written, since the definition of a limit was changed: its use is carried over to
-- the present rule, as `Rule.carry` does it.
--
-- ARGV from 3 on are pairs: a calendar, as in the tag of a quota, and four of its boundaries, two of them after now.
local calendars = {}
for index = 3, #ARGV, 2 do
  local bounds = {unpack_from('<dddd', ARGV[index + 1])}
  if bounds[1] <= now and now < bounds[3] then calendars[ARGV[index]] = bounds end
end

-- The rule that has written a value, and the state; nil where an unknown version of these scripts has written it.
local function rule_of(limit, value)
  local letter = sub(value, 5, 5)
  if not algorithms[letter] then return nil end
  local rule, parameters = {letter = letter, key = limit.key, parts = 1}, {unpack_from('<' .. tags[letter], value, 6)}
  local at = parameters[#parameters]
  if letter == 'b' or letter == 'l' then
    rule.parts, rule.a, rule.b, rule.c = unpack(parameters)
  else
    rule.a, rule.b = unpack(parameters)
  end
  rule.calendar, rule.tag = letter == 'q' and rule.a == 0 and rule.b, sub(value, 5, at - 1)
  rule.bounds = rule.calendar and calendars[rule.calendar]
  return rule, {unpack_from(formats[letter], value, at)}
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
  local letter, new_letter = rule.letter, limit.letter
  local unused = {0, 0, 0, 0, 0, 0, 0, 0}
  if letter == 'p' or new_letter == 'p' then -- permits are held and not used; their leases are counted again
    return letter == new_letter and state or unused
  end
  if new_letter == letter and (letter == 'f' or letter == 's') then return state end
  local is_bucket = (letter == 'b' or letter == 'l') and (new_letter == 'b' or new_letter == 'l')
  if is_bucket and rule.parts == limit.parts and rule.a == limit.a and rule.b == limit.b then return state end
  local used = math.min(scaled(algorithms[letter]('used', state, 0, rule), limit.parts, rule.parts), MOST_DEBT)
  if used == 0 then return unused end
  if letter == 'q' and new_letter == 'q' then
    local began = math.max(state[1], rule.a > 0 and state[2] - rule.a or start_of_period(rule, state[2]))
    local _, ends = periods(limit)
    if began > now then ends = state[2] end -- while the clock is set back, the period continues
    if rule.a > 0 and limit.a > 0 and began + limit.a > now then ends = began + limit.a end
    return {state[1], ends, used}
  end
  algorithms[new_letter]('settle', unused, used, limit)
  if new_letter == 'q' then unused[1] = now end -- what was charged before is not refunded
  return unused
end

-- See load_request(), of which this reads the state of a limit. Returns the calendar that is needed, if it is missing.
function written_by_others(limit, value, settles)
  local rule, state = rule_of(limit, value)
  if not rule then
    limit.state = {0, 0, 0, 0, 0, 0, 0, 0}
    return nil
  end
  if rule.calendar and not rule.bounds then return rule.calendar end
  if rule.letter ~= 'p' then current[rule.letter](state, rule) end
  if settles then
    limit.rule, limit.state = rule, state
  else
    local scope, letter = limit.scope, limit.letter
    limit.state, scope.is_moved = carried(limit, rule, state), true
    local full_at = letter == 'p' and now + limit.a or algorithms[letter]('credit', {unpack(limit.state)}, 0, limit)
    scope.full_at = math.max(scope.full_at, full_at)
  end
end
