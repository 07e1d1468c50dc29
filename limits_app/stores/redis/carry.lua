-- Reading states that another rule has written, since the definition of a limit was changed: its use is carried over to
-- the present rule, as `Rule.carry` does it.
--
-- `formats` say how the numbers of a state are packed, and `tags` what follows the letter in a tag. All tags but those of
-- permits begin with how much is counted for 1 of an amount: 1, or millionths of a currency. `has_parts` names the letters
-- whose tags go on with the parts of a unit; the other algorithms count whole units.
local formats = {b = 'I8I8', l = 'I8I8', f = 'I8I8', s = 'I8I8I8I8I8I2I2I4', q = 'I8I8I8', p = 'I8I4I8I8', u = ''}
local tags = {b = 'I3I7I7I6I6', l = 'I3I7I7I6I6', f = 'I3I6', s = 'I3I6I6', q = 'I3I6Bc0', p = '', u = 'I3'}
local has_parts = {b = true, l = true}

-- Whether a limit reads a state of another rule as the same use, as `Rule.carry` decides; letters with the same function
-- read the states of each other. Without one, the use is converted.
local reads = {}
function reads.b(_, rule, limit)
  return rule.parts == limit.parts and rule.a == limit.a and rule.b == limit.b
end
reads.l = reads.b
function reads.f() return true end
function reads.s(numbers, rule, limit)
  if limit.a > rule.a then -- the log is kept for a window
    numbers[10] = math.floor((now + idle_us(limit.a)) / 1000000)
    write_later('PEXPIRE', limit.key, milliseconds(idle_us(limit.a)))
  end
  return true
end

-- ARGV from 4 on are pairs: a calendar, as in the tag of a quota, and four of its boundaries, two of them after now.
local calendars = {}
for index = 4, #ARGV, 2 do
  local bounds = {unpack_from('<dddd', ARGV[index + 1])}
  if bounds[1] <= now and now < bounds[3] then calendars[ARGV[index]] = bounds end
end

-- The rule that has written a value, and the state, whose log is under `key` if it has one; nil where an unknown version of these scripts has written it.
local function rule_of(key, value)
  local letter = string.sub(value, 5, 5)
  if not algorithms[letter] then return nil end
  local rule, parameters = {}, {unpack_from('<' .. tags[letter], value, 6)}
  rule.letter, rule.key, rule.tag = letter, key, string.sub(value, 5, table.remove(parameters) - 1)
  if letter ~= 'p' then rule.per_amount = table.remove(parameters, 1) end
  rule.parts = has_parts[letter] and table.remove(parameters, 1) or 1
  rule.a, rule.b, rule.c = unpack(parameters)
  rule.calendar = letter == 'q' and rule.a == 0 and rule.b
  rule.bounds, rule.format = rule.calendar and calendars[rule.calendar], '<I4c' .. #rule.tag .. formats[letter]
  return rule, {unpack_from(rule.format, value)}
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

-- Start of the period of a calendar that ends then: it is the present one, or the next.
local function start_of_period(rule, ends)
  local start, present_ends = periods(rule)
  return ends > present_ends and present_ends or start
end

-- End of the period at a time from now on; where it is not known, that of the last one that is, and at least `least`.
local function end_of_period(rule, time, least)
  if rule.a > 0 then return time + rule.a end
  local _, second, third, fourth = boundaries(rule)
  if time >= fourth then return math.max(fourth, least) end
  return time >= third and fourth or time >= second and third or second
end

-- The state of a limit that was never used.
local function unused(rule) return {0, rule.tag, 0, 0, 0, 0, 0, 0, 0, 0} end

local function carried(limit, rule, state)
  local letter, new_letter = rule.letter, limit.letter
  local new = unused(limit)
  if letter == 'p' or new_letter == 'p' then -- permits are held and not used; their leases are counted again
    return new
  end
  local are_read, per_amount = reads[new_letter], unpack_from('<I3', limit.tag, 2)
  local counts_alike = per_amount == rule.per_amount
  if counts_alike and are_read and are_read == reads[letter] and are_read(state, rule, limit) then
    state[2] = limit.tag
    return state
  end
  local used = algorithms[letter]('used', state, 0, rule)
  if counts_alike then
    used = scaled(used, limit.parts, rule.parts)
  else -- first what the present rule counts, whole units or millionths
    used = scaled(scaled(used, per_amount, rule.parts), 1, rule.per_amount) * limit.parts
  end
  used = math.min(used, MOST_DEBT)
  if used == 0 then return new end
  algorithms[new_letter]('settle', new, used, limit)
  if new_letter == 'q' and letter == 'q' then
    local start, former_ends = state[3], state[4]
    local began = math.max(start, rule.a > 0 and former_ends - rule.a or start_of_period(rule, former_ends))
    new[3], new[4] = start, end_of_period(limit, math.max(now, began), former_ends)
    if rule.a > 0 and limit.a > 0 and began + limit.a > now then new[4] = began + limit.a end
  elseif new_letter == 'q' then
    new[3] = now -- what was charged before is not refunded
  end
  return new
end

-- See load_request(), of which this reads the state of a limit. Returns the calendar that is needed, if it is missing.
function written_by_others(scope, limit, value, settles)
  local rule, state = rule_of(scope.key .. ':log:' .. limit.field, value)
  if not rule then
    limit.state = unused(limit)
    return nil
  end
  if rule.calendar and not rule.bounds then return rule.calendar end
  if rule.letter ~= 'p' then algorithms[rule.letter]('current', state, 0, rule) end
  if settles then
    limit.other, limit.state = rule, state
  else
    local letter, new = limit.letter, carried(limit, rule, state)
    limit.state, scope.is_moved = new, true
    local full_at = letter == 'p' and now + limit.a or algorithms[letter]('credit', {unpack(new)}, 0, limit)
    scope.full_at = math.max(scope.full_at, full_at)
  end
end
