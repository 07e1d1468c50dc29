-- Charge the first of several requests that fits, each completely or not at all; mostly there is one.
--
-- The plan: how many requests there are, whether the emptiest goes first, whether the others follow when the first is
-- rejected, and whether admitted requests may be undone; of each request where its keys start, the version of the
-- configuration that it was made for (-1: any), and where it is described: its scopes, and of each limit the algorithm,
-- the scope, the place in the record, three parameters, the number of its key (0: none), whether it is soft, the number
-- of its usage, and the parts of a unit (0: not counted). KEYS[1] is the version of the configuration.
-- The numbers: the requests in the order in which they are tried, and where the amounts of each start.
-- ARGV[3]: the holder of permits of each, 16 bytes, in that order; where there are permits.
-- Replies: S stale configuration, C the record has another schema, T other calendars are needed, or D and for each
-- request that was tried its turn, the length of its decision, and the decision:
-- R rejected, A admitted, N admitted in a scope without a record; the time, and the states of the limits; of a request
-- that may be undone, also the records after and before, unless a log was written.
local requests, emptiest_first, failover, may_be_undone = unpack_from('<dddd', plan)
local holders, NO_ENTRY = holder, string.rep('\0', 16)

-- Decide on one request. Returns the status, and after S or C nothing, else the states and records.
local function decide(place, first_key, version, amounts_at)
  if version >= 0 and tonumber(call('GET', KEYS[1]) or 0) ~= version then return 'S' end
  local scopes, limits, first = load_scopes(place, first_key, now)
  if not scopes then return 'C' end
  local states, is_admitted, at, number_at = '', true, first, amounts_at
  writes, log_was_written, calendars_at = nil, false, amounts_at + limits * 8
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
    if not full_at then
      is_admitted = false
      break
    end
    if full_at > scope.full_at then scope.full_at = full_at end
    local packed = pack(format, unpack(state))
    scope.record = put(scope.record, place_in_record, packed)
    if parts > 0 and amount > 0 then count_usage(scope, usage, amount, parts) end
    states = states .. (told and pack(format, unpack(told)) or packed)
    if name == 'sliding_window' then states = states .. NO_ENTRY end
  end
  if is_admitted then
    for index = 1, writes and #writes or 0 do call(unpack(writes[index])) end
    for index = 1, #scopes do
      local scope = scopes[index]
      if scope.counts and scope.starts_hour then start_hour(scope) end
      save(scope)
    end
    for index = 1, before and not log_was_written and #scopes or 0 do
      states = states .. scopes[index].record .. before[index]
    end
    return scopes.has_new and 'N' or 'A', states
  end
  -- A caller that is rejected receives the states as they are, and what it needs of logs.
  scopes, limits, at = load_scopes(place, first_key, now)
  states = ''
  for _ = 1, limits do
    local amount, name, scope, place_in_record, a, b, c, key, _
    name, scope, place_in_record, a, b, c, key, _, _, _, at = unpack_from('<sddddddddd', plan, at)
    amount, amounts_at = unpack_from('<d', ARGV[2], amounts_at)
    local algorithm = algorithms[name]
    local state = {unpack_from(algorithm.format, scopes[scope].record, place_in_record)}
    local rejected, time, total = algorithm.rejected, nil, nil
    if rejected then time, total = rejected(state, amount, a, b, c, KEYS[first_key + key - 1]) end
    states = states .. pack(algorithm.format, unpack(state)) .. (time and pack('<dd', time, total) or '')
  end
  return 'R', states
end

local turns
if emptiest_first > 0 then
  turns = {}
  for turn = 1, requests do
    local request = unpack_from('<d', ARGV[2], numbers_at + turn * 16 - 16)
    local first_key, _, place = unpack_from('<ddd', plan, 33 + request * 24)
    local scopes, limits, at = load_scopes(place, first_key, now)
    local largest = 0 -- the largest share of a limit that is in use
    if not scopes then return 'C' end
    for _ = 1, limits do
      local name, scope, place_in_record, a, b, c, key, _
      name, scope, place_in_record, a, b, c, key, _, _, _, at = unpack_from('<sddddddddd', plan, at)
      local algorithm = algorithms[name]
      local state = {unpack_from(algorithm.format, scopes[scope].record, place_in_record)}
      local share = algorithm.share and algorithm.share(state, a, b, c, KEYS[first_key + key - 1]) or 0
      largest = math.max(largest, share)
    end
    turns[turn] = {turn = turn, load = largest}
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
  holder = holders and string.sub(holders, turn * 16 - 15, turn * 16)
  local status, states = decide(place, first_key, version, amounts_at)
  if not states then return status end
  reply = reply .. pack('<ddc1dc0', turn, 9 + #states, status, now, states)
  if status ~= 'R' then return reply_once(reply) end
end
-- A rejection writes nothing, unless the call is repeated: the first one may still arrive.
return attempt == 1 and reply_once(reply) or reply
