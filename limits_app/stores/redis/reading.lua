-- @take
local function read(key)
  return call('HGET', key, 's')
end

-- @settle undo credit
-- The record of a scope, and until when somebody watches it.
local function read(key, _, watched, index)
  local found = call('HMGET', key, 's', 'w')
  watched[index] = found[2]
  return found[1]
end
