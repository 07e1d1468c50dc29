-- The start of every script. The algorithms that the script needs follow, and then the file of the verb.
--
-- ARGV[1] is the plan, the same in every call. ARGV[2] are the numbers of this call. Both are packed,
-- little-endian; numbers are doubles, which hold every integer below 2^53 exactly. Times are microseconds.
local floor, max, min, sub = math.floor, math.max, math.min, string.sub
local call, pack, unpack_from = redis.call, struct.pack, struct.unpack
local plan, holder = ARGV[1], ARGV[3] -- the holder of permits
local number, attempt, now, charged_at, idle_factor, least_idle_us, numbers_at = unpack_from('<dddddd', ARGV[2])

-- Exactly once, see exactly_once.py: the last of KEYS holds the number of the caller's last call, and the reply to it.
-- Calls with the number 0 may be executed twice.
local function reply_once(reply)
  local is_new = call('HSET', KEYS[#KEYS], 'r', pack('<dc0', number, reply))
  if is_new == 1 or number % 16 == 0 then call('PEXPIRE', KEYS[#KEYS], 3600000) end
  return reply
end

if number > 0 then
  local last = call('HGET', KEYS[#KEYS], 'r')
  if last and unpack_from('<d', last) >= number then return sub(last, 9) end
  -- The caller withdraws a call that was never answered: if it arrives after this, it is not executed.
  if attempt == 2 then return reply_once('W') end
end

if now < 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local MOST_DEBT = 4503599627370496 -- as DEBT_PARTS in core/algorithms/rule.py
local HOUR_US, USAGE_KEPT_US = 3600000000, 694800000000 -- the second: KEPT_HOURS of core/counting.py, and an hour
local ALWAYS = 4294967295 -- the second until which records are kept that do not expire
local NEVER = 9007199254740992 -- as NEVER_US in core/algorithms/rule.py

-- An integer as text (tostring() loses digits); how long state is kept that equals unused state after `us`;
-- milliseconds for an expiry (servers reject more than 30,000 years); a text with other bytes at a place.
local function whole(value) return string.format('%.0f', value) end
local function idle_us(us) return max(us * idle_factor, least_idle_us) end
local function milliseconds(us) return min(floor(us / 1000) + 1, 1000000000000000) end
local function put(text, place, bytes) return sub(text, 1, place - 1) .. bytes .. sub(text, place + #bytes) end

-- Every algorithm adds a table: how a state is packed, and functions. `state` is a list of the packed numbers, which
-- they change; a, b and c are the parameters of `Rule.lua`, and `key` is that of the log or the leases.
-- take, settle, credit and undo return when the state equals an unused one.
--   take(state, amount, a, b, c, key)    charge; nil when the amount does not fit now. The second result is the state
--                                        that the caller receives, where another one is stored
--   settle(state, change, a, b, c, key)  charge a positive change, refund a negative one where the algorithm can
--   credit(state, change, ...)           a negative change that no claim holds (settle where it is not defined)
--   undo(state, change, ...)             refund the charge of a moment ago (credit where it is not defined)
--   share(state, a, b, c, key)           the share of the limit that is in use
--   rejected(state, amount, ...)         change the state to what the caller receives; for a log, also return the time
--                                        and the total of the entry with which the amount fits again
local algorithms = {
  -- As BlockedRule in core/algorithms/rule.py: every request is rejected.
  blocked = {format = '<', take = function() end, settle = function() return 0 end, share = function() return 0 end},
}
local calendars_at, lease_was_lost = nil, false -- see quota.lua and permits.lua

-- Logs and leases are written after everything was decided.
local writes, log_was_written = {}, false
local function write_later(...) writes[#writes + 1] = {...} end
local function write_now()
  for index = 1, #writes do call(unpack(writes[index])) end
end

-- Read the scopes of a request, whose description is in the plan at `at` and whose keys start at KEYS[first_key].
-- Returns them, how many limits follow, and where; or nil where a record was written under another schema.
-- Of each scope the plan has the name of its schema, the size of its record, whether it is kept while idle, how many
-- limits count usage, and where after `at` the label of its usage is. Usage is counted in the hour of `time`.
local function load_scopes(at, first_key, time)
  local start, scopes, count, limits = at, {}, nil, nil
  count, limits, at = unpack_from('<dd', plan, at)
  for index = 1, count do
    local schema, size, lasting, counted, label_at
    schema, size, lasting, counted, label_at, at = unpack_from('<c6dddd', plan, at)
    local key, sums, has_usage, starts_hour = KEYS[first_key + index - 1], nil, nil, nil
    local record = call('HGET', key, 's')
    if not record then
      record, scopes.has_new = schema .. string.rep('\0', size - 6), true
    elseif #record ~= size or sub(record, 1, 6) ~= schema then
      return nil
    end
    if counted > 0 then
      local hour = floor(time / HOUR_US)
      sums = call('HGET', key, 'c')
      has_usage = sums
      starts_hour = not sums or unpack_from('<d', sums) ~= hour
      if starts_hour then sums = pack('<d', hour) .. string.rep('\0', 8 * counted) end
    end
    scopes[index] = {key = key, record = record, full_at = lasting > 0 and math.huge or 0, sums = sums, counts = false,
      has_usage = has_usage, starts_hour = starts_hour, label_at = start + label_at}
  end
  return scopes, limits, at
end

-- Count an amount of a limit as usage, in thousandths of units; `parts` are a unit.
local function count_usage(scope, usage, amount, parts)
  local place = 1 + 8 * usage
  local sum = unpack_from('<d', scope.sums, place) + floor(amount / parts * 1000 + 0.5)
  scope.sums, scope.counts = put(scope.sums, place, pack('<d', sum)), true
end

-- KEYS ends with a hash of finished usage, and its fields sorted by hour: 'c' and a name for usage, and 'o' and the key
-- of a scope that counts, with the label of it.
local function keep_usage(field, value, hour)
  local finished, hours = KEYS[#KEYS - 2], KEYS[#KEYS - 1]
  call('HSET', finished, field, value)
  call('ZADD', hours, hour, field)
  for _, key in ipairs({finished, hours}) do call('PEXPIRE', key, milliseconds(USAGE_KEPT_US)) end
end

-- Add the usage of a finished hour to that of the same hour and label.
local function add_finished_usage(label, usage)
  local finished, hours = KEYS[#KEYS - 2], KEYS[#KEYS - 1]
  local field = 'c' .. sub(usage, 1, 8) .. redis.sha1hex(label)
  local stored, sums, is_zero = call('HGET', finished, field), label .. '\0', true
  for at = 9, #usage, 8 do
    local sum = unpack_from('<d', usage, at)
    if stored then sum = sum + unpack_from('<d', stored, #label + at - 7) end
    is_zero = is_zero and sum == 0
    sums = sums .. pack('<d', sum)
  end
  if is_zero then
    call('HDEL', finished, field)
    call('ZREM', hours, field)
  else
    keep_usage(field, sums, unpack_from('<d', usage))
  end
end

-- Start to count the current hour: the scope is noted, so that its usage is collected, and the usage of an earlier hour
-- is finished. Usage that was not collected for too long is dropped.
local function start_hour(scope)
  local finished, hours, label = KEYS[#KEYS - 2], KEYS[#KEYS - 1], unpack_from('s', plan, scope.label_at)
  if scope.has_usage then add_finished_usage(label, scope.has_usage) end
  keep_usage('o' .. scope.key, label, now / HOUR_US)
  local oldest = '(' .. whole(floor((now - USAGE_KEPT_US) / HOUR_US))
  for _, field in ipairs(call('ZRANGEBYSCORE', hours, '-inf', oldest, 'LIMIT', 0, 2)) do
    call('HDEL', finished, field)
    call('ZREM', hours, field)
  end
end

-- Save the record of a scope, which equals an unused one at `scope.full_at`, and keep it until then.
local function save(scope)
  local key, record, kept_until = scope.key, scope.record, unpack_from('<I4', scope.record, 7)
  local full_in = scope.full_at - now
  local lives, expires = idle_us(full_in), false
  if scope.full_at == math.huge then -- it is kept while idle
    if kept_until ~= ALWAYS then call('PERSIST', key) end
    record = put(record, 7, pack('<I4', ALWAYS))
  elseif kept_until == ALWAYS or scope.counts and scope.starts_hour
    or kept_until * 1000000 < now + max(full_in, lives / 2) then
    record, expires = put(record, 7, pack('<I4', min(floor((now + lives) / 1000000), ALWAYS - 1))), true
  end
  if scope.counts then call('HSET', key, 's', record, 'c', scope.sums) else call('HSET', key, 's', record) end
  -- Usage is kept until it is collected.
  if (scope.counts or scope.has_usage) and lives < USAGE_KEPT_US then lives = USAGE_KEPT_US end
  if expires then call('PEXPIRE', key, milliseconds(lives)) end
  scope.record = record
end
