-- What every script starts with. KEYS[1] is the record of the link that asks; ARGV[1] says what the plan is,
-- ARGV[2] what this call wants, both packed as little-endian doubles, which are exact for all our integers.
local floor, max, min, pack, unpack_from = math.floor, math.max, math.min, struct.pack, struct.unpack
local call = redis.call
local plan, at = ARGV[1], 1
local number, again, now, admitted_at, idle_factor, least_idle, wanted = unpack_from('<dddddd', ARGV[2])

-- A reply that was lost is given again, and nothing is done twice.
if again > 0 then
  local record = call('HGET', KEYS[1], 'r')
  if record and unpack_from('<d', record) == number then return string.sub(record, 9) end
end

local function recorded(reply)
-- with: recording
return reply
end

if now < 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- What was read already of the scope that is asked first, whose version was the right one.
local seen
-- with: usual

local function whole(value)
  return string.format('%.0f', value)
end

-- How long state is kept that is full again after so many microseconds.
local function idle(us)
  return max(us * idle_factor, least_idle)
end

-- 30,000 years at most: of more, servers read neither the number nor the moment at which it ends.
local function milliseconds(us)
  return min(floor(us / 1000) + 1, 1000000000000000)
end
