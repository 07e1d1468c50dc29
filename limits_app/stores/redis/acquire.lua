-- Charge the first of several requests that fits, each completely or not at all; mostly there is one.
--
-- The plan: how many requests there are, whether the emptiest goes first, whether the others follow when the first is
-- rejected; of each request where its keys start, the version of the configuration that it was made for (-1: any), how
-- many bytes of numbers it has, and where in the plan it is described. KEYS[1] is the version of the configuration.
-- The numbers: the requests in the order in which they are tried, and then the amounts of each, in that order.
-- ARGV[3]: the holder of permits of each, 16 bytes, in that order.
-- Replies: S stale configuration, C the record has another schema, T other calendars are needed, or D and for each
-- request that was tried its turn, the length of its decision, and the decision:
-- R rejected, A admitted, N admitted in a scope without a record; the time, and the states of the limits.
local requests, emptiest_first, failover = unpack_from('<ddd', plan)
local version = tonumber(call('GET', KEYS[1]) or 0)

-- Read the request that is tried in a turn, with its records; otherwise returns nil and the reply.
local function load_request(turn, at)
  local request_number = unpack_from('<d', ARGV[2], numbers_at + turn * 8 - 8)
  local first_key, wanted_version, size, place = unpack_from('<dddd', plan, 25 + request_number * 32)
  if wanted_version >= 0 and wanted_version ~= version then return nil, 'S' end
  local request = read_request(place, first_key)
  read_amounts(request, at)
  request.next_at = at + size
  if not load_records(request) then return nil, 'C' end
  return request
end

-- Return expired permits before anything is decided.
local function reclaim_permits(request)
  for _, limit in ipairs(request.limits) do
    local reclaim, scope = limit.algorithm.reclaim, limit.scope
    if reclaim and reclaim(limit) then
      put_state(limit)
      call('HSET', scope.key, 's', scope.record)
      if scope.is_new then call('PEXPIRE', scope.key, milliseconds(least_idle_us)) end
    end
  end
end

-- Charge the states of a request; false when an amount does not fit.
local function take_all(request)
  for _, limit in ipairs(request.limits) do
    local algorithm, amount = limit.algorithm, limit.amount
    local full_at = algorithm.take(limit, amount)
    if not full_at and limit.soft then full_at = algorithm.settle(limit, amount) end
    if not full_at then return false end
    limit.scope.full_at = max(limit.scope.full_at, full_at)
  end
  return true
end

local function decision(request, status)
  local reply = {status, pack('<d', now)}
  for _, limit in ipairs(request.limits) do
    local algorithm = limit.algorithm
    reply[#reply + 1] = algorithm.tell and algorithm.tell(limit) or algorithm.write(limit.state)
  end
  return table.concat(reply)
end

local function decide(request)
  writes = {}
  reclaim_permits(request)
  if not take_all(request) then
    for _, limit in ipairs(request.limits) do
      limit.state, limit.told, limit.was_rejected = limit.algorithm.read(limit.scope.record, limit.place), nil, true
    end
    return decision(request, 'R')
  end
  count_usage(request, now, true)
  for _, limit in ipairs(request.limits) do put_state(limit) end
  write_now()
  for _, scope in ipairs(request.scopes) do save(scope) end
  return decision(request, request.has_new_scope and 'N' or 'A')
end

-- The largest share of a limit that is in use; of a scope without a record, nothing is.
local function load_of(request)
  local largest = 0
  for _, limit in ipairs(request.limits) do
    if not limit.scope.is_new then largest = max(largest, limit.algorithm.share(limit)) end
    limit.state = limit.algorithm.read(limit.scope.record, limit.place)
  end
  return largest
end

local order, at = {}, numbers_at + requests * 8
if emptiest_first > 0 then
  for turn = 1, requests do
    local request, reply = load_request(turn, at)
    if not request then return reply end
    order[turn] = {turn = turn, request = request, load = load_of(request)}
    at = request.next_at
  end
  table.sort(order, function(one, other)
    if one.load == other.load then return one.turn < other.turn end
    return one.load < other.load
  end)
end

local reply = {'D'}
for place = 1, failover > 0 and requests or 1 do
  local turn, request, other_reply = place, nil, nil
  if emptiest_first > 0 then
    turn, request = order[place].turn, order[place].request
  else
    request, other_reply = load_request(turn, at)
    if not request then return other_reply end
    at = request.next_at
  end
  if ARGV[3] ~= '' then holder = string.sub(ARGV[3], turn * 16 - 15, turn * 16) end
  local decided = decide(request)
  reply[#reply + 1] = pack('<dd', turn, #decided) .. decided
  if string.sub(decided, 1, 1) ~= 'R' then return reply_once(table.concat(reply)) end
end
-- A rejection writes nothing, unless the call is repeated: the first one may still arrive.
if attempt == 1 then reply_once(table.concat(reply)) end
return table.concat(reply)
