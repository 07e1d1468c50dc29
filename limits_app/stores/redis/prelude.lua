-- The start of every script. The algorithms that the script needs follow, and then the file of the verb.
--
-- ARGV[1] is the plan, the same in every call. ARGV[2] are the numbers of this call. Both are packed,
-- little-endian; numbers are doubles, which hold every integer below 2^53 exactly. Times are microseconds.
local call, pack, unpack_from = redis.call, struct.pack, struct.unpack
local plan, numbers = ARGV[1], ARGV[2]
local now, charged_at = unpack_from('<dd', numbers)
local NUMBERS_AT = 17 -- where the numbers of the verb start

local idle_factor, least_idle_us, plan_at = unpack_from('<dd', plan)
if now < 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local MOST_DEBT = 4503599627370496 -- as DEBT_PARTS in engine/algorithms/rule.py
local HOUR_US, USAGE_KEPT_US = 3600000000, 694800000000 -- the second: KEPT_HOURS of engine/counting.py, and an hour
local ALWAYS = 4294967295 -- the second until which records are kept that do not expire
local RESET_KEPT_US = 86400000000 -- as in engine/engine.py
local NEVER = 9007199254740992 -- as NEVER_US in engine/algorithms/rule.py

-- An integer as text (tostring() loses digits); how long state is kept that equals unused state after `us`;
-- milliseconds for an expiry (servers reject more than 30,000 years).
local function whole(value) return string.format('%.0f', value) end
local function idle_us(us) return math.max(us * idle_factor, least_idle_us) end
local function milliseconds(us) return math.min(math.floor(us / 1000) + 1, 1000000000000000) end

-- Every algorithm adds a function (verb, record, at, amount, key, a, b, c, d) that returns when the state equals an unused
-- one. `record` is the list of the numbers that are stored for a scope, which it changes, and `at` the place of the first
-- one of the limit; a to d are the parameters of `Rule.lua`, and `key` is that of the log or the leases. The verbs:
--   take    charge an amount; returns nil when it does not fit now
--   settle  charge a positive change, refund a negative one where the algorithm can
--   credit  a negative change that no claim holds
--   undo    refund the charge of a moment ago
--   share   change nothing, and return the share of the limit that is in use
-- `rejected` has functions without a verb that change the record to what the caller receives; for a log, it also returns
-- the time and the total of the entry with which the amount fits again.
-- `current` has functions (record, at, key, a, b, c, d) that return whether the state was written before the clock was set
-- back, and then change it as `Rule.current` does.
local algorithms, rejected, current = {}, {}, {}
local after_amounts, lease_was_lost -- where the holder and boundaries are; see quota.lua and permits.lua

-- Logs and leases are written after everything was decided.
local writes
local function write_later(...)
  writes = writes or {}
  writes[#writes + 1] = {...}
end
local count_usage, start_hour, add_finished_usage, drop_oldest_usage -- see usage.lua

-- A server whose memory is full refuses the first write of a script if the command may need more memory, but none of
-- the later ones. So scripts that change known scopes begin with a write that has no effect.
local function write_to_known(scope)
  if scope then call('HDEL', scope.key, '') end
end

-- Read the next limit of a request from the plan at `at`, with its state as it counts now. Returns the algorithm, the
-- scope, the place in the record, whether it is soft, the number of its usage, the parts of a unit, where the next limit
-- is, and the key and the parameters.
local function next_limit(at, scopes, first_key)
  local name, scope, place, a, b, c, d, key, soft, usage, parts
  name, scope, place, a, b, c, d, key, soft, usage, parts, at = unpack_from('<sdddddddddd', plan, at)
  scope, key = scopes[scope], KEYS[first_key + key - 1]
  if current[name] and current[name](scope.record, place, key, a, b, c, d) then scope.is_moved = true end
  return name, scope, place, soft, usage, parts, at, key, a, b, c, d
end

-- Read the scopes of a request, whose description is in the plan at `at` and whose keys start at KEYS[first_key].
-- Returns them, how many limits follow, and where; or nil where a record was written under another schema.
-- Of each scope the plan has the name of its schema, the size of its record, whether it is kept while idle, how many
-- limits count usage, which of the labels is that of its usage, and how its record is packed: the name of the schema,
-- the second until which it is kept, the time of the last reset, and the numbers of all limits. The labels follow the
-- description. Usage is counted in the hour of `time`.
local function load_scopes(at, first_key, time)
  local start, scopes, has_new, count, limits, labels_at = at, {}, false, nil, nil, nil
  count, limits, labels_at, at = unpack_from('<ddd', plan, at)
  for index = 1, count do
    local schema, size, lasting, counted, label, format
    schema, size, lasting, counted, label, format, at = unpack_from('<c6dddds', plan, at)
    local key = KEYS[first_key + index - 1]
    local stored = call('HGET', key, 's')
    if not stored then
      stored, has_new = schema .. string.rep('\0', size - 6), true
    elseif #stored ~= size then
      return nil
    end
    local record = {unpack_from(format, stored)}
    if record[1] ~= schema then return nil end
    local full_at = lasting > 0 and math.huge or record[3] > 0 and record[3] + RESET_KEPT_US or 0
    local scope = {key = key, format = format, record = record, full_at = full_at}
    scopes[index] = scope
    if counted > 0 then
      local hour, sums = math.floor(time / HOUR_US), call('HGET', key, 'c')
      scope.has_usage, scope.label, scope.labels_at = sums, label, start + labels_at
      scope.starts_hour = not sums or unpack_from('<d', sums) ~= hour
      scope.sums = scope.starts_hour and pack('<d', hour) .. string.rep('\0', 8 * counted) or sums
    end
  end
  return scopes, limits, at, has_new
end

-- Return the label of the usage of a scope.
local function label_of(scope)
  local label, at = nil, scope.labels_at
  for _ = 0, scope.label do label, at = unpack_from('s', plan, at) end
  return label
end

-- Save the record of a scope, which equals an unused one at `scope.full_at`, and keep it until then. Returns it as the
-- caller receives it.
local function save(scope)
  local key, record, full_in = scope.key, scope.record, scope.full_at - now
  local lives, expires, kept_until = idle_us(full_in), false, record[2]
  -- Use of other limits, which is kept with the record, may be there for longer.
  if kept_until ~= ALWAYS then lives = math.max(lives, kept_until * 1000000 - now) end
  if scope.full_at == math.huge or kept_until == ALWAYS and call('HEXISTS', key, 'k') == 1 then -- it is kept while idle
    if kept_until ~= ALWAYS then call('PERSIST', key) end
    record[2] = ALWAYS
  elseif kept_until == ALWAYS or scope.counts and scope.starts_hour
    or kept_until * 1000000 < now + math.max(full_in, lives / 2) then
    record[2], expires = math.min(math.floor((now + lives) / 1000000), ALWAYS - 1), true
  end
  local packed = pack(scope.format, unpack(record))
  local stored = packed
  if record.unsaved then
    for at, value in pairs(record.unsaved) do record[at] = value end
    stored = pack(scope.format, unpack(record))
  end
  if scope.counts then call('HSET', key, 's', stored, 'c', scope.sums) else call('HSET', key, 's', stored) end
  -- Usage is kept until it is collected.
  if (scope.counts or scope.has_usage) and lives < USAGE_KEPT_US then lives = USAGE_KEPT_US end
  if expires then call('PEXPIRE', key, milliseconds(lives)) end
  return packed
end
