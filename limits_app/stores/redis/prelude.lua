-- The start of every script. The algorithms that the script needs follow, and then the file of the verb.
--
-- ARGV[1] is the plan: what is the same in every call. ARGV[2] are the numbers of this call. Both are packed,
-- little-endian; numbers are doubles, which hold every integer below 2^53 exactly. Times are microseconds.
local floor, max, min = math.floor, math.max, math.min
local call, pack, unpack_from = redis.call, struct.pack, struct.unpack
local plan, holder = ARGV[1], ARGV[3] -- the holder of permits
local number, attempt, now, charged_at, idle_factor, least_idle_us, numbers_at = unpack_from('<dddddd', ARGV[2])

-- Exactly once, see exactly_once.py: the last of KEYS holds the last reply to this caller and the number of that call.
-- Calls with the number 0 may be executed twice.
local function reply_once(reply)
  if number > 0 then call('SET', KEYS[#KEYS], pack('<dc0', number, reply), 'PX', 3600000) end
  return reply
end

if number > 0 then
  local last = call('GET', KEYS[#KEYS])
  if last and unpack_from('<d', last) >= number then return string.sub(last, 9) end
  -- The caller withdraws a call that was never answered: if it arrives after this, it is not executed.
  if attempt == 2 then return reply_once('W') end
end

if now < 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local MOST_DEBT = 4503599627370496 -- as DEBT_PARTS in core/algorithms/rule.py
local HOUR_US = 3600000000
local USAGE_KEPT_US = 193 * HOUR_US -- KEPT_HOURS of core/counting.py and one hour
local HEADER = 10 -- bytes of a record before its states: the name of the schema, and until which second it is kept
local ALWAYS = 4294967295 -- that second, of records that do not expire

-- An integer as text: tostring() would lose digits.
local function whole(value)
  return string.format('%.0f', value)
end

-- How long state is kept that equals unused state again after `us`.
local function idle_us(us)
  return max(us * idle_factor, least_idle_us)
end

-- At most 30,000 years: servers reject more.
local function milliseconds(us)
  return min(floor(us / 1000) + 1, 1000000000000000)
end

-- Every algorithm adds a table of functions. `limit` is a limit of the request; `limit.state` is a table that the
-- functions change, and that is stored only if the whole request is admitted; `limit.a`, `.b` and `.c` are the
-- parameters of `Rule.lua`. take, settle, credit and undo return when the state equals an unused one.
--   read(record, place), write(state)   the state from and to bytes
--   take(limit, amount)                 charge; nil when the amount does not fit now
--   settle(limit, change)               charge a positive change, refund a negative one where the algorithm can
--   credit(limit, change)               a negative change that no claim holds (settle where it is not defined)
--   undo(limit, change)                 the refund of what was charged a moment ago (credit where it is not defined)
--   share(limit)                        the share of the limit that is in use
--   reclaim(limit)                      return expired leases; true when the state has changed
--   tell(limit)                         what the caller receives, where that is more than the state
local algorithms = {}

-- As BlockedRule in core/algorithms/rule.py: every request is rejected.
algorithms.blocked = {
  read = function() return {} end,
  write = function() return '' end,
  take = function() return nil end,
  settle = function() return 0 end,
  share = function() return 0 end,
}

-- Logs and leases are written after everything was decided.
local writes = {}
local function write_later(...)
  writes[#writes + 1] = {...}
end

local function write_now()
  for index = 1, #writes do call(unpack(writes[index])) end
  writes = {}
end

-- Read a request from the plan, whose keys start at KEYS[first_key].
-- Of each scope: the name of its schema, the size of its record, whether it is kept while idle, how many limits count
-- usage, and the label of its usage. Of each limit: algorithm, scope, place in the record, parameters, number of the key
-- of its log or leases, whether it is soft, and the parts of a unit, or 0 where its usage is not counted.
local function read_request(at, first_key)
  local scopes, limits, scope_count, limit_count = {}, {}
  local request = {scopes = scopes, limits = limits}
  scope_count, limit_count, at = unpack_from('<dd', plan, at)
  for index = 1, scope_count do
    local schema, size, lasting, counted, label
    schema, size, lasting, counted, label, at = unpack_from('<c6ddds', plan, at)
    scopes[index] = {key = KEYS[first_key + index - 1], schema = schema, size = size, lasting = lasting > 0,
      counted = counted, label = label, full_at = 0}
  end
  for index = 1, limit_count do
    local name, scope, place, a, b, c, key, soft, usage, parts
    name, scope, place, a, b, c, key, soft, usage, parts, at = unpack_from('<sddddddddd', plan, at)
    limits[index] = {request = request, algorithm = algorithms[name], scope = scopes[scope], place = place,
      a = a, b = b, c = c, key = key > 0 and KEYS[first_key + key - 1], soft = soft > 0, usage = usage, parts = parts}
  end
  return request
end

-- Read the amounts of a request, or the changes of them; the boundaries of its calendars follow.
local function read_amounts(request, at)
  for _, limit in ipairs(request.limits) do
    limit.amount, at = unpack_from('<d', ARGV[2], at)
  end
  request.calendars_at = at
end

-- Load the records of a request; false where one was written under another schema.
local function load_records(request)
  for _, scope in ipairs(request.scopes) do
    local found = call('HMGET', scope.key, 's', 'c', 'w')
    local record = found[1]
    scope.usage, scope.watched_until = found[2], found[3]
    if not record then
      request.has_new_scope, scope.is_new = true, true
      record = scope.schema .. string.rep('\0', scope.size - 6)
    elseif #record ~= scope.size or string.sub(record, 1, 6) ~= scope.schema then
      return false
    end
    scope.record = record
  end
  for _, limit in ipairs(request.limits) do
    limit.state = limit.algorithm.read(limit.scope.record, limit.place)
  end
  return true
end

-- Put the state of a limit into the record of its scope.
local function put_state(limit)
  local scope, state = limit.scope, limit.algorithm.write(limit.state)
  scope.record = string.sub(scope.record, 1, limit.place - 1) .. state .. string.sub(scope.record, limit.place + #state)
end

-- Add the usage of a finished hour to that of the same hour and label. KEYS ends with a hash of finished usage, and its
-- fields sorted by hour: 'c' and a name for usage, and 'o' and the key of a scope that counts, with the label of it.
local function add_finished_usage(label, usage)
  local finished, hours = KEYS[#KEYS - 2], KEYS[#KEYS - 1]
  local field = 'c' .. string.sub(usage, 1, 8) .. redis.sha1hex(label)
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
    return
  end
  call('HSET', finished, field, sums)
  call('ZADD', hours, unpack_from('<d', usage), field)
  call('PEXPIRE', finished, milliseconds(USAGE_KEPT_US))
  call('PEXPIRE', hours, milliseconds(USAGE_KEPT_US))
end

-- Note that a scope counts usage, so that it is collected; what was not collected for too long is dropped.
local function note_counting(scope)
  local finished, hours = KEYS[#KEYS - 2], KEYS[#KEYS - 1]
  call('HSET', finished, 'o' .. scope.key, scope.label)
  call('ZADD', hours, now / HOUR_US, 'o' .. scope.key)
  call('PEXPIRE', finished, milliseconds(USAGE_KEPT_US))
  call('PEXPIRE', hours, milliseconds(USAGE_KEPT_US))
  local oldest = '(' .. whole(floor((now - USAGE_KEPT_US) / HOUR_US))
  for _, field in ipairs(call('ZRANGEBYSCORE', hours, '-inf', oldest, 'LIMIT', 0, 2)) do
    call('HDEL', finished, field)
    call('ZREM', hours, field)
  end
end

-- Count the amounts of a request as usage of the hour of `moment`. The usage of a scope is an hour, and for each limit of
-- its schema a sum in thousandths of units. An admitted request starts a new hour; a change that is settled for another
-- hour than the current one is finished usage.
local function count_usage(request, moment, starts_hour)
  local hour = floor(moment / HOUR_US)
  for _, limit in ipairs(request.limits) do
    if limit.parts > 0 and limit.amount ~= 0 then
      local scope = limit.scope
      scope.added = scope.added or {}
      scope.added[limit.usage] = floor(limit.amount / limit.parts * 1000 + 0.5)
    end
  end
  for _, scope in ipairs(request.scopes) do
    if scope.added then
      local format = '<' .. string.rep('d', 1 + scope.counted)
      local is_current = scope.usage and unpack_from('<d', scope.usage) == hour
      local before = is_current and scope.usage or pack('<d', hour) .. string.rep('\0', 8 * scope.counted)
      local sums = {unpack_from(format, before)}
      for usage, amount in pairs(scope.added) do sums[1 + usage] = sums[1 + usage] + amount end
      local usage = pack(format, unpack(sums, 1, 1 + scope.counted))
      if not is_current and starts_hour then
        if scope.usage then add_finished_usage(scope.label, scope.usage) end
        note_counting(scope)
        scope.starts_hour = true
      end
      if is_current or starts_hour then scope.usage = usage else add_finished_usage(scope.label, usage) end
    end
  end
end

-- Save the record of a scope, which equals an unused one at `scope.full_at`, and keep it until then.
local function save(scope)
  local kept_until = unpack_from('<I4', scope.record, 7)
  local full_in, was_lasting = scope.full_at - now, kept_until == ALWAYS
  local lives = idle_us(full_in)
  local extends = not scope.lasting
    and (was_lasting or scope.starts_hour or kept_until * 1000000 < now + max(full_in, lives / 2))
  if scope.lasting then
    kept_until = ALWAYS
  elseif extends then
    kept_until = min(floor((now + lives) / 1000000), ALWAYS - 1)
  end
  local record = scope.schema .. pack('<I4', kept_until) .. string.sub(scope.record, HEADER + 1)
  scope.record = record
  if scope.usage then
    call('HSET', scope.key, 's', record, 'c', scope.usage)
    lives = max(lives, USAGE_KEPT_US) -- until it is collected
  else
    call('HSET', scope.key, 's', record)
  end
  if extends then call('PEXPIRE', scope.key, milliseconds(lives)) end
  if scope.lasting and not was_lasting then call('PERSIST', scope.key) end
end
