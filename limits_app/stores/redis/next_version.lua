-- Give the configuration its next version, which is at least what the caller says.
local version = max((tonumber(call('GET', KEYS[2])) or 0) + 1, unpack_from('<d', ARGV[2], wanted))
call('SET', KEYS[2], whole(version))
return whole(version)
