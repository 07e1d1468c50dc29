local open, take, settle, view, share, tells_before = {}, {}, {}, {}, {}, true

local function read(key)
  return call('HGET', key, 's')
end
