local open, take, view, tells_before = {}, {}, {}, false

local function read(key)
  return call('HGET', key, 's')
end
