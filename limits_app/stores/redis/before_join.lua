local open, take, view, tells_before = {}, {}, {}, true

local function read(key)
  return call('HGET', key, 's')
end
