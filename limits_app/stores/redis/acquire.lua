-- Charge the first of several requests that fits, each completely or not at all; mostly there is one.
--
-- The plan: how many requests there are, whether the emptiest goes first, whether the others follow when the first is
-- rejected; of each request where its keys start, the version of the configuration that it was made for (-1: any), how
-- many bytes of numbers it has, and where in the plan it is described: its scopes, and of each limit the algorithm, the
-- scope, the place in the record, three parameters, the number of its key (0: none), whether it is soft, the number of
-- its usage, and the parts of a unit (0: not counted). KEYS[1] is the version of the configuration.
-- The numbers: the requests in the order in which they are tried, and then the amounts of each, in that order.
-- ARGV[3]: the holder of permits of each, 16 bytes, in that order.
-- Replies: S stale configuration, C the record has another schema, T other calendars are needed, or D and for each
-- request that was tried its turn, the length of its decision, and the decision:
-- R rejected, A admitted, N admitted in a scope without a record; the time, and the states of the limits.
local requests, emptiest_first, failover = unpack_from('<ddd', plan)
local version = tonumber(call('GET', KEYS[1]) or 0)
local holders, NO_ENTRY = holder, string.rep('\0', 16)

-- What a caller that is rejected receives: the states as they are, and what it needs of logs.
local function rejection(scopes, limits, at, first_key, amounts_at)
  local reply = {'R', pack('<d', now)}
  for _ = 1, limits do
    local amount, name, scope, place, a, b, c, key, _
    name, scope, place, a, b, c, key, _, _, _, at = unpack_from('<sddddddddd', plan, at)
    amount, amounts_at = unpack_from('<d', ARGV[2], amounts_at)
    local algorithm = algorithms[name]
    local state = {unpack_from(algorithm.format, scopes[scope].record, place)}
    local time, total
    if algorithm.rejected then time, total = algorithm.rejected(state, amount, a, b, c, KEYS[first_key + key - 1]) end
    reply[#reply + 1] = pack(algorithm.format, unpack(state)) .. (time and pack('<dd', time, total) or '')
  end
  return table.concat(reply)
end

-- Decide on one request. The reply is its decision, or S or C.
local function decide(at, first_key, wanted_version, amounts_at)
  if wanted_version >= 0 and wanted_version ~= version then return 'S' end
  local scopes, limits, limits_at = load_scopes(at, first_key, now)
  if not scopes then return 'C' end
  writes, calendars_at = {}, amounts_at + limits * 8
  local status, states, number_at = scopes.has_new and 'N' or 'A', '', amounts_at
  at = limits_at
  for _ = 1, limits do
    local amount, name, scope_number, place, a, b, c, key, soft, usage, parts
    name, scope_number, place, a, b, c, key, soft, usage, parts, at = unpack_from('<sddddddddd', plan, at)
    amount, number_at = unpack_from('<d', ARGV[2], number_at)
    local algorithm, scope = algorithms[name], scopes[scope_number]
    local format, record, log_or_leases = algorithm.format, scope.after or scope.record, KEYS[first_key + key - 1]
    local state = {unpack_from(format, record, place)}
    local full_at, told = algorithm.take(state, amount, a, b, c, log_or_leases)
    if not full_at and soft > 0 then full_at = algorithm.settle(state, amount, a, b, c, log_or_leases) end
    if not full_at then return rejection(scopes, limits, limits_at, first_key, amounts_at) end
    if full_at > scope.full_at then scope.full_at = full_at end
    local packed = pack(format, unpack(state))
    scope.after = put(record, place, packed)
    if parts > 0 and amount > 0 then count_usage(scope, usage, amount, parts) end
    states = states .. (told and pack(format, unpack(told)) or packed)
    if name == 'sliding_window' then states = states .. NO_ENTRY end
  end
  write_now()
  for index = 1, #scopes do
    local scope = scopes[index]
    scope.record = scope.after or scope.record
    if scope.counts then
      scope.starts_hour = not scope.is_current_hour
      if scope.starts_hour then start_hour(scope) end
      scope.usage = scope.sums
    end
    save(scope)
  end
  return status .. pack('<d', now) .. states
end

-- The largest share of a limit of a request that is in use; nil and C where a record has another schema.
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

local turns, at = {}, numbers_at + requests * 8
for turn = 1, requests do
  local request = unpack_from('<d', ARGV[2], numbers_at + turn * 8 - 8)
  local first_key, wanted_version, size, place = unpack_from('<dddd', plan, 25 + request * 32)
  turns[turn] = {turn = turn, first_key = first_key, version = wanted_version, place = place, amounts_at = at}
  at = at + size
  if emptiest_first > 0 then
    turns[turn].load = load_of(place, first_key)
    if not turns[turn].load then return 'C' end
  end
end
if emptiest_first > 0 then
  table.sort(turns, function(one, other)
    if one.load == other.load then return one.turn < other.turn end
    return one.load < other.load
  end)
end

local reply = 'D'
for index = 1, failover > 0 and requests or 1 do
  local one = turns[index]
  holder = sub(holders, one.turn * 16 - 15, one.turn * 16)
  local decision = decide(one.place, one.first_key, one.version, one.amounts_at)
  local status = sub(decision, 1, 1)
  if status == 'S' or status == 'C' then return decision end
  reply = reply .. pack('<dd', one.turn, #decision) .. decision
  if status ~= 'R' then return reply_once(reply) end
end
-- A rejection writes nothing, unless the call is repeated: the first one may still arrive.
return attempt == 1 and reply_once(reply) or reply
