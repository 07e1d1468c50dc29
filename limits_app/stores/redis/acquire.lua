-- Charge the first of several requests that fits, each completely or not at all; mostly there is one.
--
-- The plan: how many requests there are, whether the emptiest goes first, and whether the others follow when the first
-- is rejected; of each request where its keys start, where it is described, and the size of its numbers: its scopes, and
-- of each limit the algorithm, the scope, the place in the record, four parameters, the number of its key (0: none),
-- whether it is soft, the number of its usage, and the parts of a unit (0: not counted). KEYS[1] is the version of the
-- configuration.
-- The numbers, of each request: the version that it was made for (-1: any), the amounts, the holder of permits (16 bytes,
-- where there are any), and the boundaries of calendars. Blocked scopes are not among the requests.
-- Replies: S stale configuration, C the record has another schema, T other calendars are needed, or of each request that
-- was tried R rejected, A admitted, or N admitted in a scope without a record; the turn from 0 on, the time, the records,
-- and of a rejection for each log the entry with which the amount fits again.
local requests, emptiest_first, failover
requests, emptiest_first, failover, plan_at = unpack_from('<ddd', plan, plan_at)

-- Decide on one request. Returns the status, and after R, A and N the records; or an error where there is no memory.
local function decide(turn)
  local first_key, number_at = turn.first_key, turn.amounts_at
  if turn.version >= 0 and tonumber(call('GET', KEYS[1]) or 0) ~= turn.version then return 'S' end
  local scopes, limits, at, has_new = load_scopes(turn.place, first_key, now)
  if not scopes then return 'C' end
  local is_admitted = true
  writes, after_amounts = nil, number_at + limits * 8
  for _ = 1, limits do
    local amount, name, scope, place, soft, usage, parts, key, a, b, c, d
    name, scope, place, soft, usage, parts, at, key, a, b, c, d = next_limit(at, scopes, first_key)
    amount, number_at = unpack_from('<d', numbers, number_at)
    local full_at = algorithms[name]('take', scope.record, place, amount, key, a, b, c, d)
    if not full_at and soft > 0 then
      full_at = algorithms[name]('settle', scope.record, place, amount, key, a, b, c, d)
    end
    if not full_at then
      is_admitted = false
      break
    end
    if full_at > scope.full_at then scope.full_at = full_at end
    if parts > 0 and amount > 0 then count_usage(scope, usage, amount, parts) end
  end
  if is_admitted then
    local records = ''
    if has_new then
      -- Without effect: does the server have memory for more? Counted usage gives way first.
      local room = redis.pcall('SETRANGE', KEYS[1], 0, '')
      local is_full = type(room) == 'table' and string.find(room.err, 'OOM', 1, true)
      if is_full and not (drop_oldest_usage and drop_oldest_usage('+inf')) then return room end
      for index = 1, is_full and #scopes or 0 do scopes[index].counts = false end
    else
      write_to_known(scopes[1])
    end
    for index = 1, writes and #writes or 0 do call(unpack(writes[index])) end
    for index = 1, #scopes do
      local scope = scopes[index]
      if scope.counts and scope.starts_hour then start_hour(scope) end
      records = records .. save(scope)
    end
    return has_new and 'N' or 'A', records
  end
  -- A caller that is rejected receives the records as they are, and what it needs of logs.
  local records, entries = '', ''
  scopes, limits, at = load_scopes(turn.place, first_key, now)
  number_at = turn.amounts_at
  local first_limit = at
  for _ = 1, limits do at = select(7, next_limit(at, scopes, first_key)) end
  for index = 1, #scopes do
    local scope = scopes[index]
    -- States that were written before the clock was set back are saved, so that time passes for them from now on.
    if scope.is_moved then
      write_to_known(scope)
      call('HSET', scope.key, 's', pack(scope.format, unpack(scope.record)))
    end
  end
  at = first_limit
  for _ = 1, limits do
    local amount, name, scope, place, key, a, b, c, d, _
    name, scope, place, _, _, _, at, key, a, b, c, d = next_limit(at, scopes, first_key)
    amount, number_at = unpack_from('<d', numbers, number_at)
    local change = rejected[name]
    if change then
      local time, total = change(scope.record, place, amount, key, a, b, c, d)
      if time then entries = entries .. pack('<dd', time, total) end
    end
  end
  for index = 1, #scopes do records = records .. pack(scopes[index].format, unpack(scopes[index].record)) end
  return 'R', records .. entries
end

-- Return the next of the requests, as decide() receives it.
local numbers_at = NUMBERS_AT
local function next_turn(turn)
  local first_key, place, size
  first_key, place, size, plan_at = unpack_from('<ddd', plan, plan_at)
  local version, amounts_at = unpack_from('<d', numbers, numbers_at)
  numbers_at = numbers_at + size
  return {turn = turn, first_key = first_key, version = version, place = place, amounts_at = amounts_at, load = 0}
end

local turns
if emptiest_first > 0 then
  turns = {}
  for index = 1, requests do
    local turn = next_turn(index)
    turns[index] = turn
    local scopes, limits, at = load_scopes(turn.place, turn.first_key, now)
    if not scopes then return 'C' end
    after_amounts = turn.amounts_at + limits * 8
    for _ = 1, limits do
      local name, scope, place, key, a, b, c, d, _
      name, scope, place, _, _, _, at, key, a, b, c, d = next_limit(at, scopes, turn.first_key)
      turn.load = math.max(turn.load, algorithms[name]('share', scope.record, place, 0, key, a, b, c, d))
    end
  end
  table.sort(turns, function(a, b) return a.load < b.load or a.load == b.load and a.turn < b.turn end)
end

local reply = ''
for index = 1, failover > 0 and requests or 1 do
  local turn = turns and turns[index] or next_turn(index)
  local status, records = decide(turn)
  if not records then return status end
  reply = reply .. pack('<c1dd', status, turn.turn - 1, now) .. records
  if status ~= 'R' then break end
end
return reply
