-- The start of every script. The files that the script needs follow, and then the file of the verb; see commands.py.
--
-- ARGV[1] is the plan, the same for all requests of a kind. ARGV[2] are the numbers of this call. Both are packed,
-- little-endian; numbers are doubles, which hold every integer below 2^53 exactly. Times are microseconds.
--
-- A scope is a hash. The field of a limit has its key as name, and as value the second until which the hash is kept, the
-- tag of the rule that wrote it, and the numbers of the state. A tag is the letter of the algorithm and what is needed to
-- read the state. Other fields: @ the second until which the hash is kept and the time of the last reset, # and the digest
-- of the limits' keys the usage of the current hour, ! until when a thread waits for the scope. A field of a limit that was
-- removed stays, with its use.
--
-- A script runs as a whole in every call, and making its functions and tables costs more than most requests. So what few
-- requests need is in files of their own, or inside the function that needs it. A function makes a script dearer by each
-- local variable that it uses from outside: functions call redis.call and struct.pack, and not other names of these. A table
-- that grows costs more than one that is made with all its fields, or as {nil}, which has room for one.
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
local ALWAYS = 4294967295 -- the second until which scopes are kept that do not expire

-- Milliseconds for an expiry (servers reject more than 30,000 years), as text: that of Redis for numbers is slow.
local function milliseconds(us) return string.format('%d', math.min(math.floor(us / 1000) + 1, 1000000000000000)) end

-- Every algorithm adds a function by its letter: (verb, state, amount, rule) that returns when the state equals an unused
-- one. `state` is the list of what the value of a field has, with the numbers from 3 on, which the function changes; `rule`
-- has the capacity, the parameters `a` to `c` of `Rule.lua`, and the `key` of the log or the leases; `keep` is what a
-- request has to leave free for requests of higher classes (see keep.lua), or -1: the limit rejects nothing. The verbs:
--   take     charge an amount; returns nil when it does not fit now
--   settle   charge a positive change, refund a negative one where the algorithm can
--   credit   a negative change that no claim holds
--   undo     refund a charge as if it had not been made; `rule.before` was in use before it, and `rule.window` is
--            the start of the window that it was charged to
--   used     change nothing, and return the amount in use
--   current  return whether the state was written before the clock was set back, and then change it as `Rule.current` does
-- `rejected` has functions without a verb that change the state to what the caller receives; for a log, it also returns
-- the time and the total of the entry with which the amount fits again.
-- A tag is the letter and what carry.lua needs to read the state.
local algorithms = {b = false, f = false, l = false, p = false, q = false, s = false, u = false}
local rejected
local after_amounts, lease_was_lost, token_has_ended -- where the holder and boundaries are; see quota.lua and permits.lua
local periods, boundaries -- see quota.lua
local written_by_others -- see carry.lua
local whole, idle_us, writes, write_later, write_now -- see own_keys.lua
local count_usage, add_finished_usage, keep_usage, label_of, usage_list -- see usage.lua

-- The second until which a scope has to be kept for all its limits but the `own` ones, and for its last reset; and whether
-- usage of it waits to be collected.
local function kept_for_others(key, own)
  local fields, latest, has_usage = redis.call('HGETALL', key), 0, false
  for index = 1, #fields, 2 do
    local field = fields[index]
    if string.find(field, '^[%a@]') and not own[field] then
      latest = math.max(latest, (struct.unpack('<I4', fields[index + 1])))
    end
    has_usage = has_usage or string.sub(field, 1, 1) == '#'
  end
  return latest, has_usage
end

-- Read a request, whose description is in the plan at `at` and whose keys start at KEYS[first_key]. Returns its scopes,
-- with their limits, each with its `state` as it counts now; or nil where another rule has written a state, unless the
-- script has carry.lua, and with it the calendar that is needed to read this state, or ''.
-- The amounts are in the numbers at `amounts_at`, and what belongs to them follows.
-- Of each scope the plan has how many limits follow, whether it is kept while idle, how many sums its usage has, which of
-- the labels of the request is that of its usage, and the field of its usage. ARGV[3] has the labels of all requests.
-- Usage is counted in the hour of `time`.
-- `settles` is for claims that were charged before: then a state stays with the rule that wrote it, the `other` of a limit.
local function load_request(at, first_key, amounts_at, time, settles)
  local plan, scopes, scope_count, total = ARGV[1], {nil}, nil, nil
  scope_count, total, at = struct.unpack('<dd', plan, at)
  after_amounts = amounts_at + 8 * total
  for index = 1, scope_count do
    local limit_count, lasting, sum_count, label, usage_field
    limit_count, lasting, sum_count, label, usage_field, at = struct.unpack('<ddddc5', plan, at)
    local name, limits, fields = KEYS[first_key + index - 1], {nil}, {usage_field}
    local scope = {
      key = name, limits = limits, full_at = lasting > 0 and math.huge or 0, kept_until = 0, label = label, stored = 0,
      usage_field = usage_field, counts = false, is_moved = false, starts_hour = false, stored_sums = false, sums = false,
    }
    for place = 1, limit_count do
      local field, letter, tag, format, size, key, keep, usage, parts, capacity, a, b, c
      field, letter, tag, format, size, key, keep, usage, parts, capacity, a, b, c, at = struct.unpack('<sc1Bc0sddddddddd', plan, at)
      fields[place + 1] = field
      limits[place] = {
        field = field, letter = letter, tag = tag, format = format, size = size, key = key > 0 and KEYS[first_key + key - 1],
        keep = keep, usage = usage, parts = parts, capacity = capacity, a = a, b = b, c = c, state = false,
      }
    end
    if settles then fields[#fields + 1] = '@' end
    local stored = limit_count > 0 and redis.call('HMGET', name, unpack(fields)) or {} -- a blocked scope has no limits
    for place = 1, limit_count do
      local limit, value = limits[place], stored[place + 1]
      if not value then
        limit.state = {0, limit.tag, 0, 0, 0, 0, 0, 0, 0, 0} -- that of a limit that was never used
      else
        local state = #value == limit.size and {struct.unpack(limit.format, value)}
        if state and state[2] == limit.tag then
          limit.state = state
        elseif not written_by_others then
          return nil, ''
        else
          local calendar = written_by_others(scope, limit, value, settles)
          if calendar then return nil, calendar end
        end
        scope.stored, scope.kept_until = scope.stored + 1, math.max(scope.kept_until, limit.state[1])
        if not limit.other and algorithms[limit.letter]('current', limit.state, 0, limit) then scope.is_moved = true end
      end
    end
    if sum_count > 0 then
      local hour, sums = math.floor(time / HOUR_US), stored[1]
      scope.stored_sums, scope.starts_hour = sums, not sums or struct.unpack('<d', sums) ~= hour
      scope.sums = scope.starts_hour and struct.pack('<d', hour) .. string.rep('\0', 8 * sum_count) or sums
    end
    if settles then scope.reset_at = stored[#fields] and select(2, struct.unpack('<I4d', stored[#fields])) or 0 end
    scopes[index] = scope
  end
  return scopes
end

-- Save the states of a scope, or only those that have `changed`, which equal unused ones at `scope.full_at`, and keep the
-- scope until then. Returns their values, as the caller receives them; or nil and an error, where the server refuses a scope
-- that `may_be_refused` because its memory is full.
local function save(scope, only_changed, may_be_refused)
  local key, full_in, expires, kept_until = scope.key, scope.full_at - now, false, scope.kept_until
  local lives, has_usage = math.max(full_in * idle_factor, least_idle_us), scope.counts or scope.stored_sums
  local values, fields = '', scope.counts and {scope.usage_field, scope.sums} or {}
  if full_in == math.huge then
    kept_until = ALWAYS
  elseif kept_until == ALWAYS or scope.counts and scope.starts_hour
    or kept_until * 1000000 < now + math.max(full_in, lives / 2) then
    kept_until = kept_until < ALWAYS and kept_until or 0
    if redis.call('HLEN', key) > scope.stored + (scope.stored_sums and 1 or 0) then
      local own = {}
      for _, limit in ipairs(scope.limits) do own[limit.field] = true end
      local kept_for, has_other_usage = kept_for_others(key, own)
      kept_until, has_usage = math.max(kept_until, kept_for), has_usage or has_other_usage
    end
    if kept_until < ALWAYS then -- else use is kept that may return when the entity has its own limits again
      lives = math.max(lives, kept_until * 1000000 - now)
      kept_until, expires = math.min(math.floor((now + lives) / 1000000), ALWAYS - 1), true
    end
  end
  for _, limit in ipairs(scope.limits) do
    if not only_changed or limit.changed then
      local format, state, unsaved = (limit.other or limit).format, limit.state, limit.unsaved
      state[1] = kept_until
      local value = struct.pack(format, unpack(state))
      values = values .. value
      if unsaved then
        unsaved[1] = kept_until
        value = struct.pack(format, unpack(unsaved))
      end
      fields[#fields + 1] = limit.field
      fields[#fields + 1] = value
    end
  end
  -- A server whose memory is full refuses the first write of a script if the command may need more memory, but none of
  -- the later ones. So scripts that change known scopes begin with a write that has no effect.
  local added = redis.pcall('HSET', key, unpack(fields))
  if type(added) == 'table' then
    if may_be_refused and string.find(added.err, 'OOM', 1, true) then return nil, added end
    redis.call('HDEL', key, '')
    redis.call('HSET', key, unpack(fields))
  end
  if full_in == math.huge and scope.kept_until ~= ALWAYS then redis.call('PERSIST', key) end
  -- Usage is kept until it is collected.
  if has_usage and lives < USAGE_KEPT_US then lives = USAGE_KEPT_US end
  if expires then redis.call('PEXPIRE', key, milliseconds(lives)) end
  return values
end
