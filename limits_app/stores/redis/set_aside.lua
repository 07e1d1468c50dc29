-- Rename keys that another program has written with another type, and let them expire after a day.
--
-- ARGV from 3 on: the type that each of KEYS must have. The reply: the new names.
local renamed = {}
for index = 1, #KEYS do
  local found = call('TYPE', KEYS[index]).ok
  if found ~= 'none' and found ~= ARGV[index + 2] then
    local name = KEYS[index] .. ':unreadable'
    call('RENAME', KEYS[index], name)
    call('PEXPIRE', name, 86400000)
    renamed[#renamed + 1] = name
  end
end
return renamed
