-- Charge the first of several requests that fits. The plan: how many there are, whether the emptiest comes first, and
-- whether others are asked than the one that comes first; then of each how many keys it has, how many bytes of ARGV[2]
-- and of the plan are about it, and its own plan. ARGV[3] holds in whose name each would take permits.
-- Replies: S stale, C another layout, T another time, or F and of each that was asked its number, and what was decided.
local many, emptiest_first, failover, at = unpack_from('<ddd', plan)
local requests, told = {}, {'F'}

local function as_it_is(reply) return reply end

-- Decide on one; gives the reply when no other has to be asked.
local function ask(request)
  local number, at, keys, wanted = unpack(request, 1, 4)
  holder, writes, restores = string.sub(ARGV[3], number * 16 - 15, number * 16), {}, {}
  local reply = decide(at, keys, wanted, as_it_is)
  local status = string.sub(reply, 1, 1)
  if status == 'S' or status == 'C' then return status end
  told[#told + 1] = pack('<dd', number, #reply) .. reply
  if status ~= 'R' then return recorded(table.concat(told)) end
end

local first_key = 2
for number = 1, many do
  local keys, numbers, size
  keys, numbers, size, at = unpack_from('<ddd', plan, at)
  local request = {number, at, {KEYS[1], unpack(KEYS, first_key, first_key + keys - 1)}, wanted}
  first_key, wanted, at = first_key + keys, wanted + numbers, at + size
  if emptiest_first > 0 then
    request[5] = share_of(request[2], request[3], request[4])
    if type(request[5]) == 'string' then return request[5] end
    requests[number] = request
  else
    local reply = ask(request)
    if reply then return reply end
  end
end

if emptiest_first > 0 then
  table.sort(requests, function(one, other)
    return one[5] < other[5] or one[5] == other[5] and one[1] < other[1]
  end)
  for place = 1, failover > 0 and many or 1 do
    local reply = ask(requests[place])
    if reply then return reply end
  end
end
return table.concat(told)
