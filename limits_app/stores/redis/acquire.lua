-- Charge the first of several requests that fits, each completely or not at all; mostly there is one.
--
-- The plan: how many requests there are, whether the emptiest goes first, and what happens to the others (0: nothing,
-- 1: they follow when the first is rejected, 2: nothing, and nothing is charged either); of each request where its keys
-- start, where it is described, its first label, and the size of its numbers: its scopes, and in each its limits: the field, the tag, the
-- number of its key (0: none), whether it is soft, the number of its usage (0: not counted), the parts of a unit, the
-- capacity, and three parameters. KEYS[1] is the version of the configuration.
-- The numbers, of each request: the version that it was made for (-1: any), the amounts, the holder of permits (16 bytes,
-- where there are any), and the boundaries of calendars. Blocked scopes are not among the requests.
-- Replies: S stale configuration, C and the time: another rule has written a state, and carry.lua is needed, with the
-- calendar that follows, T other calendars are needed, E the lease of the token has ended, or of each request that was tried R rejected or A admitted; the
-- turn from 0 on, the time, the values of the limits, and of a rejection for each log the entry with which the amount fits
-- again.
local requests, emptiest_first, others
requests, emptiest_first, others, plan_at = unpack_from('<ddd', plan, plan_at)

-- Append the values of limits as they are to a reply, and what a rejected caller needs of logs.
local function append_states(reply, scopes, amount_at)
  local entries, amount = {}, nil
  for index = 1, #scopes do
    local limits, states = scopes[index].limits, scopes[index].states
    for place = 1, #limits do
      local limit = limits[place]
      local change = rejected[limit[LETTER]]
      amount, amount_at = unpack_from('<d', numbers, amount_at)
      if change then
        local time, total = change(states[place], amount, limit)
        if time then entries[#entries + 1] = pack('<dd', time, total) end
      end
      reply[#reply + 1] = value_of(limit, states[place], 0)
    end
  end
  reply[#reply + 1] = table.concat(entries)
end

-- Charge the amounts of a request to its states; returns whether all fit.
local function charge(scopes, amount_at)
  local amount
  for index = 1, #scopes do
    local scope = scopes[index]
    for place = 1, #scope.limits do
      local limit, state = scope.limits[place], scope.states[place]
      local change = algorithms[limit[LETTER]]
      amount, amount_at = unpack_from('<d', numbers, amount_at)
      local full_at = change('take', state, amount, limit)
      if not full_at and limit[SOFT] > 0 then full_at = change('settle', state, amount, limit) end
      if not full_at then return false end
      if full_at > scope.full_at then scope.full_at = full_at end
      if limit[USAGE] > 0 and amount > 0 then count_usage(scope, limit, amount) end
    end
  end
  return true
end

-- Whether the server has nothing under the key of one of some scopes: others were used before, or reset.
local function has_no_record(scopes)
  for index = 1, #scopes do
    if not scopes[index].is_known and call('EXISTS', scopes[index].key) == 0 then return true end
  end
  return false
end

-- Decide on one request, and append the decision to the reply; returns its status, or what the script replies instead.
local function decide(turn, reply)
  if turn.version >= 0 and tonumber(call('GET', KEYS[1]) or 0) ~= turn.version then return 'S' end
  local scopes, calendar = turn.scopes, nil
  if scopes then
    after_amounts = turn.after_amounts
  else
    scopes, calendar = load_request(turn.place, turn.first_key, turn.amounts_at, now)
    if not scopes then return 'C' .. pack('<d', now) .. calendar end
  end
  local is_admitted = others < 2 and charge(scopes, turn.amounts_at)
  if token_has_ended then return 'E' end
  reply[#reply + 1] = pack('<c1dd', is_admitted and 'A' or 'R', turn.turn - 1, now)
  if is_admitted then
    local has_new, is_full
    for index = 1, #scopes do
      if not scopes[index].is_known then has_new = true end
    end
    if has_new then
      -- Without effect: does the server have memory for more? Counted usage gives way first.
      local room = redis.pcall('SETRANGE', KEYS[1], 0, '')
      is_full = type(room) == 'table' and string.find(room.err, 'OOM', 1, true) and has_no_record(scopes)
      if is_full and not (drop_oldest_usage and drop_oldest_usage()) then return room end
    end
    for index = 1, #scopes do
      local scope = scopes[index]
      scope.counts = scope.counts and not is_full
      save(scope, reply)
    end
    write_now()
    for index = 1, #scopes do
      local scope = scopes[index]
      if scope.counts and scope.starts_hour then start_hour(scope, turn.first_label) end
    end
    return 'A'
  end
  -- A caller that is rejected receives the states as they are.
  if others < 2 then
    writes = nil
    scopes = load_request(turn.place, turn.first_key, turn.amounts_at, now)
    local is_moved = false
    for index = 1, #scopes do
      local scope = scopes[index]
      -- States that were written before the clock was set back are saved, so that time passes for them from now on; and
      -- those that were carried over, so that the present rules apply from now on.
      if scope.is_moved then
        is_moved = true
        save(scope, {})
      end
    end
    if is_moved then write_now() end
  end
  append_states(reply, scopes, turn.amounts_at)
  return 'R'
end

-- Return the next of the requests, as decide() receives it.
local numbers_at = NUMBERS_AT
local function next_turn(turn)
  local first_key, place, first_label, size
  first_key, place, first_label, size, plan_at = unpack_from('<dddd', plan, plan_at)
  local version, at = unpack_from('<d', numbers, numbers_at)
  numbers_at = numbers_at + size
  return {
    turn = turn, first_key = first_key, version = version, place = place, first_label = first_label, amounts_at = at, load = 0,
  }
end

local turns
if emptiest_first > 0 then
  turns = {}
  for index = 1, requests do
    local turn = next_turn(index)
    turns[index] = turn
    local scopes, calendar = load_request(turn.place, turn.first_key, turn.amounts_at, now)
    if not scopes then return 'C' .. pack('<d', now) .. calendar end
    turn.scopes, turn.after_amounts = scopes, after_amounts
    for _, scope in ipairs(scopes) do
      for at, limit in ipairs(scope.limits) do
        local used = algorithms[limit[LETTER]]('used', scope.states[at], 0, limit)
        turn.load = math.max(turn.load, used / limit[CAPACITY])
      end
    end
  end
  table.sort(turns, function(a, b) return a.load < b.load or a.load == b.load and a.turn < b.turn end)
end

local reply = {}
for index = 1, others == 1 and requests or 1 do
  writes = nil
  local status = decide(turns and turns[index] or next_turn(index), reply)
  if status == 'A' then break end
  if status ~= 'R' then return status end
end
return table.concat(reply)
