-- Charge the first of several requests that fits, each completely or not at all; mostly there is one.
--
-- The plan: how many requests there are, whether the emptiest goes first, whether the others follow when the first is
-- rejected, and whether admitted requests may be undone; of each request where its keys start, the version of the
-- configuration that it was made for (-1: any), and where it is described: its scopes, and of each limit the algorithm,
-- the scope, the place in the record, three parameters, the number of its key (0: none), whether it is soft, the number
-- of its usage, and the parts of a unit (0: not counted). KEYS[1] is the version of the configuration.
-- The numbers: the requests in the order in which they are tried, and where the amounts of each start.
-- ARGV[3]: the holder of permits of each, 16 bytes, in that order.
-- Replies: S stale configuration, C the record has another schema, T other calendars are needed, or D and for each
-- request that was tried its turn, the length of its decision, and the decision:
-- R rejected, A admitted, N admitted in a scope without a record; the time, and the states of the limits; of a request
-- that may be undone, also the records after and before, unless a log was written.
local requests, emptiest_first, failover, may_be_undone = unpack_from('<dddd', plan)
local holders, NO_ENTRY = holder, string.rep('\0', 16)

-- What a caller that is rejected receives: the states as they are, and what it needs of logs.
local function rejection(at, first_key, amounts_at)
  local reply, scopes, limits = {'R', pack('<d', now)}, nil, nil
  scopes, limits, at = load_scopes(at, first_key, now)
  for _ = 1, limits do
    local amount, name, scope, place, a, b, c, key, _
    name, scope, place, a, b, c, key, _, _, _, at = unpack_from('<sddddddddd', plan, at)
    amount, amounts_at = unpack_from('<d', ARGV[2], amounts_at)
    local algorithm = algorithms[name]
    local state = {unpack_from(algorithm.format, scopes[scope].record, place)}
    local tell, time, total = algorithm.rejected, nil, nil
    if tell then time, total = tell(state, amount, a, b, c, KEYS[first_key + key - 1]) end
    reply[#reply + 1] = pack(algorithm.format, unpack(state)) .. (time and pack('<dd', time, total) or '')
  end
  return table.concat(reply)
end

-- Decide on one request. The reply is its decision, or S or C.
local function decide(place, first_key, version, amounts_at)
  if version >= 0 and tonumber(call('GET', KEYS[1]) or 0) ~= version then return 'S' end
  local scopes, limits, at = load_scopes(place, first_key, now)
  if not scopes then return 'C' end
  local states, number_at = '', amounts_at
  writes, log_was_written, calendars_at = {}, false, amounts_at + limits * 8
  local before = may_be_undone > 0 and {}
  for index = 1, before and #scopes or 0 do before[index] = scopes[index].record end
  for _ = 1, limits do
    local amount, name, scope, place_in_record, a, b, c, key, soft, usage, parts
    name, scope, place_in_record, a, b, c, key, soft, usage, parts, at = unpack_from('<sddddddddd', plan, at)
    amount, number_at = unpack_from('<d', ARGV[2], number_at)
    scope, key = scopes[scope], KEYS[first_key + key - 1]
    local algorithm = algorithms[name]
    local format = algorithm.format
    local state = {unpack_from(format, scope.record, place_in_record)}
    local full_at, told = algorithm.take(state, amount, a, b, c, key)
    if not full_at and soft > 0 then full_at = algorithm.settle(state, amount, a, b, c, key) end
    if not full_at then return rejection(place, first_key, amounts_at) end
    if full_at > scope.full_at then scope.full_at = full_at end
    local packed = pack(format, unpack(state))
    scope.record = put(scope.record, place_in_record, packed)
    if parts > 0 and amount > 0 then count_usage(scope, usage, amount, parts) end
    states = states .. (told and pack(format, unpack(told)) or packed)
    if name == 'sliding_window' then states = states .. NO_ENTRY end
  end
  write_now()
  for index = 1, #scopes do
    local scope = scopes[index]
    if scope.counts and scope.starts_hour then start_hour(scope) end
    save(scope)
  end
  if before and not log_was_written then
    for index = 1, #scopes do states = states .. scopes[index].record .. before[index] end
  end
  return (scopes.has_new and 'N' or 'A') .. pack('<d', now) .. states
end

-- The largest share of a limit of a request that is in use; nil where a record has another schema.
local function load_of(at, first_key)
  local scopes, limits, largest = nil, nil, 0
  scopes, limits, at = load_scopes(at, first_key, now)
  if not scopes then return nil end
  for _ = 1, limits do
    local name, scope, place, a, b, c, key, _
    name, scope, place, a, b, c, key, _, _, _, at = unpack_from('<sddddddddd', plan, at)
    local algorithm = algorithms[name]
    local state = {unpack_from(algorithm.format, scopes[scope].record, place)}
    largest = max(largest, algorithm.share(state, a, b, c, KEYS[first_key + key - 1]))
  end
  return largest
end

local turns
if emptiest_first > 0 then
  turns = {}
  for turn = 1, requests do
    local request = unpack_from('<d', ARGV[2], numbers_at + turn * 16 - 16)
    local first_key, _, place = unpack_from('<ddd', plan, 33 + request * 24)
    turns[turn] = {turn = turn, load = load_of(place, first_key)}
    if not turns[turn].load then return 'C' end
  end
  table.sort(turns, function(one, other)
    return one.load < other.load or one.load == other.load and one.turn < other.turn
  end)
end

local reply = 'D'
for index = 1, failover > 0 and requests or 1 do
  local turn = turns and turns[index].turn or index
  local request, amounts_at = unpack_from('<dd', ARGV[2], numbers_at + turn * 16 - 16)
  local first_key, version, place = unpack_from('<ddd', plan, 33 + request * 24)
  holder = sub(holders, turn * 16 - 15, turn * 16)
  local decision = decide(place, first_key, version, amounts_at)
  local status = sub(decision, 1, 1)
  if status == 'S' or status == 'C' then return decision end
  reply = reply .. pack('<dd', turn, #decision) .. decision
  if status ~= 'R' then return reply_once(reply) end
end
-- A rejection writes nothing, unless the call is repeated: the first one may still arrive.
return attempt == 1 and reply_once(reply) or reply
