-- Never lower the version of the configuration.
local version = unpack_from('<d', ARGV[2], wanted)
if tonumber(call('GET', KEYS[2]) or 0) < version then call('SET', KEYS[2], whole(version)) end
return 'A'
