-- Add rejections that a process has counted to what waits to be collected (see usage.lua), which is the only one of KEYS.
-- ARGV from 3 on are what is collected, of each limit and minute.
for index = 3, #ARGV do keep_usage('r', ARGV[index]) end
return {}
