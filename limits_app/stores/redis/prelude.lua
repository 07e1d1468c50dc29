-- The start of every script. The algorithms that the script needs follow, and then the file of the verb.
--
-- ARGV[1] is the plan, the same in every call. ARGV[2] are the numbers of this call. Both are packed,
-- little-endian; numbers are doubles, which hold every integer below 2^53 exactly. Times are microseconds.
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
  if last and unpack_from('<d', last) >= number then return string.sub(last, 9) end
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
local function idle_us(us) return math.max(us * idle_factor, least_idle_us) end
local function milliseconds(us) return math.min(math.floor(us / 1000) + 1, 1000000000000000) end
local function put(s, place, bytes) return string.sub(s, 1, place - 1) .. bytes .. string.sub(s, place + #bytes) end

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
local algorithms = {blocked = {format = '<', take = function() end}} -- as BlockedRule in core/algorithms/rule.py
local calendars_at, lease_was_lost = nil, false -- see quota.lua and permits.lua

-- Logs and leases are written after everything was decided.
local writes, log_was_written = nil, false
local function write_later(...)
  writes = writes or {}
  writes[#writes + 1] = {...}
end
local count_usage, start_hour, add_finished_usage -- see usage.lua

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
    local key = KEYS[first_key + index - 1]
    local record = call('HGET', key, 's')
    if not record then
      record, scopes.has_new = schema .. string.rep('\0', size - 6), true
    elseif #record ~= size or string.sub(record, 1, 6) ~= schema then
      return nil
    end
    local scope = {key = key, record = record, full_at = lasting > 0 and math.huge or 0}
    scopes[index] = scope
    if counted > 0 then
      local hour, sums = math.floor(time / HOUR_US), call('HGET', key, 'c')
      scope.has_usage, scope.label_at = sums, start + label_at
      scope.starts_hour = not sums or unpack_from('<d', sums) ~= hour
      scope.sums = scope.starts_hour and pack('<d', hour) .. string.rep('\0', 8 * counted) or sums
    end
  end
  return scopes, limits, at
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
    or kept_until * 1000000 < now + math.max(full_in, lives / 2) then
    record, expires = put(record, 7, pack('<I4', math.min(math.floor((now + lives) / 1000000), ALWAYS - 1))), true
  end
  if scope.counts then call('HSET', key, 's', record, 'c', scope.sums) else call('HSET', key, 's', record) end
  -- Usage is kept until it is collected.
  if (scope.counts or scope.has_usage) and lives < USAGE_KEPT_US then lives = USAGE_KEPT_US end
  if expires then call('PEXPIRE', key, milliseconds(lives)) end
  scope.record = record
end
