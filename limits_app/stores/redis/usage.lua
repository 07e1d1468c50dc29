-- Counting usage, in scripts for scopes that do.
local MOST_USAGE = 1000000 -- how many scopes, finished hours and rejections wait with one tag

-- The hash of finished usage, and its fields sorted by hour: 'c' and a name for usage, and 'o' and the key of a scope
-- that counts, with the label of it, and 'r' and a name for rejections (see reject.lua). They are the last of KEYS.
local finished, hours = KEYS[#KEYS - 1], KEYS[#KEYS]

local MINUTE_US = 60000000 -- how often the time until both expire begins again

-- The usage of a scope is the hour, the digest of the keys of its limits, and a sum for each of them.
local SUMS_AT = 13

-- Count an amount of a limit as usage, in thousandths of units.
function count_usage(scope, limit, amount)
  local place = SUMS_AT + 8 * (limit[USAGE] - 1)
  local sum = unpack_from('<d', scope.sums, place) + math.floor(amount / limit[PARTS] * 1000 + 0.5)
  scope.sums = string.sub(scope.sums, 1, place - 1) .. pack('<d', sum) .. string.sub(scope.sums, place + 8)
  scope.counts = true
end

function keep_usage(field, value, hour)
  call('HSET', finished, field, value)
  call('ZADD', hours, hour, field)
  if call('PTTL', hours) < milliseconds(USAGE_KEPT_US - MINUTE_US) then
    for _, key in ipairs({finished, hours}) do call('PEXPIRE', key, milliseconds(USAGE_KEPT_US)) end
  end
end

local function drop_usage(field)
  call('HDEL', finished, field)
  call('ZREM', hours, field)
end

-- Add the usage of a finished hour to that of the same hour and label.
function add_finished_usage(label, usage)
  local field = 'c' .. string.sub(usage, 1, 8) .. redis.sha1hex(label)
  local stored, sums, is_zero = call('HGET', finished, field), label .. '\0', true
  for at = SUMS_AT, #usage, 8 do
    local sum = unpack_from('<d', usage, at)
    if stored then sum = sum + unpack_from('<d', stored, #label + 2 + at - SUMS_AT) end
    is_zero = is_zero and sum == 0
    sums = sums .. pack('<d', sum)
  end
  if is_zero then drop_usage(field) else keep_usage(field, sums, unpack_from('<d', usage)) end
end

-- Let a scope whose usage is no longer counted expire with its state.
local function release_scope(key)
  local kept_until = kept_for_others(key, {})
  call('HDEL', key, '#')
  if kept_until < ALWAYS then call('PEXPIRE', key, milliseconds(math.max(kept_until * 1e6 - now, least_idle_us))) end
end

-- Start to count the current hour: the scope is noted, so that its usage is collected, and the usage of an earlier hour
-- is finished.
function start_hour(scope, first_label)
  local field = 'o' .. scope.key
  local stored_label = scope.stored_sums and call('HGET', finished, field) -- the limits may have been others
  if stored_label then add_finished_usage(stored_label, scope.stored_sums) end
  keep_usage(field, label_of(scope, first_label), now / HOUR_US)
  drop_old_usage()
end

-- Drop what was not collected for too long, and the oldest where there is too much.
function drop_old_usage()
  local is_full = call('ZCARD', hours) > MOST_USAGE
  drop_oldest_usage(is_full and '+inf' or '(' .. whole(math.floor((now - USAGE_KEPT_US) / HOUR_US)))
end

-- Drop the two oldest entries of usage, of an hour up to `latest`; returns whether there were any.
function drop_oldest_usage(latest)
  local fields = call('ZRANGEBYSCORE', hours, '-inf', latest, 'LIMIT', 0, 2)
  for _, field in ipairs(fields) do
    drop_usage(field)
    if string.sub(field, 1, 1) == 'o' then release_scope(string.sub(field, 2)) end
  end
  return #fields > 0
end
