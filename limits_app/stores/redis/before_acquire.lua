local open, take, settle, view, share, tells_before = {}, {}, {}, {}, {}, false

local function read(key)
  return call('HGET', key, 's')
end
