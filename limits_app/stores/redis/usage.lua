-- Counting usage, in scripts for scopes that do.
--
-- What waits to be collected is in one list, the last of KEYS, in the order in which it came. An entry is a letter, the
-- time in hours, and then, of `o`, a scope that counts: the field of its usage, its key and \0, and its label; of `c`, usage
-- of an hour that has ended or was collected, and of `r`, rejections (see reject.lua): the text that is collected.
-- Nothing else needs to be found in it: what is counted of a scope is in the field for the limits that it has.
-- The usage of a scope is the hour and a sum for each of its limits, in thousandths of units.

function count_usage(scope, limit, amount)
  local sums, place = scope.sums, 1 + 8 * limit.usage
  local sum = struct.unpack('<d', sums, place) + math.floor(amount / limit.parts * 1000 + 0.5)
  scope.sums = string.sub(sums, 1, place - 1) .. struct.pack('<d', sum) .. string.sub(sums, place + 8)
  scope.counts = true
end

-- Return the label of the usage of a scope; `first` is the first label of its request.
function label_of(scope, first)
  local label, at = nil, 1
  for _ = 0, first + scope.label do label, at = struct.unpack('s', ARGV[3], at) end
  return label
end

-- The functions for the list, which few requests need.
function usage_list()
  local waiting, TEXT_AT = KEYS[#KEYS], 10
  local list = {TEXT_AT = TEXT_AT}

  -- The field and the key of a scope in an entry, and where its label starts.
  function list.scope_of(entry)
    local field_end = TEXT_AT + 4
    local key_end = string.find(entry, '\0', field_end + 1, true)
    return string.sub(entry, TEXT_AT, field_end), string.sub(entry, field_end + 1, key_end - 1), key_end + 1
  end

  -- Let a scope whose usage is no longer counted expire with its state.
  function list.release(key, field)
    redis.call('HDEL', key, field)
    local kept_until, has_usage = kept_for_others(key, {})
    if kept_until < ALWAYS and not has_usage then
      redis.call('PEXPIRE', key, milliseconds(math.max(kept_until * 1e6 - now, least_idle_us)))
    end
  end

  local function drop_first(entry)
    redis.call('LPOP', waiting)
    if string.sub(entry, 1, 1) ~= 'o' then return end
    local field, key = list.scope_of(entry)
    local usage = redis.call('HGET', key, field)
    -- Of a later hour, there is another entry.
    if usage and struct.unpack('<d', usage) <= struct.unpack('<d', entry, 2) then list.release(key, field) end
  end

  -- Drop the two oldest entries; returns whether there were any.
  function list.drop_oldest()
    local entries = redis.call('LRANGE', waiting, 0, 1)
    for _, entry in ipairs(entries) do drop_first(entry) end
    return #entries > 0
  end

  -- Drop entries that were not collected for too long; some of them, where there are many.
  function list.drop_old()
    for _ = 1, 512 do
      local entry = redis.call('LINDEX', waiting, 0)
      if not entry or struct.unpack('<d', entry, 2) * HOUR_US >= now - USAGE_KEPT_US then return end
      drop_first(entry)
    end
  end
  return list
end

-- Add an entry. Those that were not collected for too long are dropped, and the oldest where there are too many.
function keep_usage(letter, text)
  local MOST_USAGE = 1000000 -- how many entries wait with one tag
  local LOOKED_AT = 256 -- with every so many of them, the list is kept for longer, and too old ones are dropped
  local waiting = KEYS[#KEYS]
  local count = redis.call('RPUSH', waiting, letter .. struct.pack('<d', now / HOUR_US) .. text)
  if count > MOST_USAGE then usage_list().drop_oldest() end
  if count % LOOKED_AT ~= 1 then return end
  redis.call('PEXPIRE', waiting, milliseconds(2 * USAGE_KEPT_US))
  usage_list().drop_old()
end

-- Let the usage of an hour that is no longer counted wait.
function add_finished_usage(label, usage)
  if string.find(usage, '[^%z]', 9) then -- after the hour
    keep_usage('c', label .. '\0' .. usage)
  end
end
