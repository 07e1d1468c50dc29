-- Charge the first of several requests that fits, each completely or not at all; mostly there is one.
--
-- The plan: how many requests there are, whether the emptiest goes first, and what happens to the others (0: nothing,
-- 1: they follow when the first is rejected, 2: nothing, and nothing is charged either); of each request where its keys
-- start, where it is described, its first label, and the size of its numbers: its scopes, and in each its limits: the field, the tag, the
-- number of its key (0: none), what is kept free of it (-1: it is soft), the number of its usage (0: not counted), the parts of a unit, the
-- capacity, and three parameters. KEYS[1] is the version of the configuration.
-- The numbers, of each request: the version that it was made for (-1: any), the amounts, the holder of permits (16 bytes,
-- where there are any), and the boundaries of calendars. Blocked scopes are not among the requests.
-- Replies: S stale configuration, C and the time: another rule has written a state, and carry.lua is needed, with the
-- calendar that follows, T other calendars are needed, E the lease of the token has ended, or of each request that was
-- tried R rejected or A admitted; the turn from 0 on, the time, the values of the limits, and of a rejection for each log the entry with which the amount fits
-- again.
local requests, emptiest_first, others
requests, emptiest_first, others, plan_at = unpack_from('<ddd', plan, plan_at)

-- Where each is in the plan and in the numbers. Only those of which the emptiest goes first are in a list: a table costs
-- more than to read this.
local turn_at, numbers_at, turns = plan_at, NUMBERS_AT, nil
if emptiest_first > 0 then
  turns = {}
  for index = 1, requests do
    local first_key, place, _, size = unpack_from('<dddd', plan, turn_at)
    writes = nil
    local scopes, calendar = load_request(place, first_key, numbers_at + 8, now)
    if not scopes then return 'C' .. pack('<d', now) .. calendar end
    local load = 0
    for _, scope in ipairs(scopes) do
      for _, limit in ipairs(scope.limits) do
        local used = algorithms[limit.letter]('used', limit.state, 0, limit)
        load = math.max(load, used / limit.capacity)
      end
    end
    -- The writes are such as the removal of leases that have expired, which the states do not count any more.
    turns[index] = {
      number = index - 1, turn_at = turn_at, numbers_at = numbers_at, load = load, scopes = scopes, writes = writes,
      after_amounts = after_amounts,
    }
    turn_at, numbers_at = turn_at + 32, numbers_at + size
  end
  table.sort(turns, function(a, b) return a.load < b.load or a.load == b.load and a.number < b.number end)
end

local reply = ''
for index = 1, others == 1 and requests or 1 do
  local turn, number, scopes, calendar = turns and turns[index], index - 1, nil, nil
  writes = nil
  if turn then
    number, turn_at, numbers_at, scopes = turn.number, turn.turn_at, turn.numbers_at, turn.scopes
    writes, after_amounts = turn.writes, turn.after_amounts
  end
  local first_key, place, first_label, size = unpack_from('<dddd', plan, turn_at)
  local version, amounts_at = unpack_from('<d', numbers, numbers_at)
  turn_at, numbers_at = turn_at + 32, numbers_at + size
  if version >= 0 and tonumber(call('GET', KEYS[1]) or 0) ~= version then return 'S' end
  if not scopes then
    scopes, calendar = load_request(place, first_key, amounts_at, now)
    if not scopes then return 'C' .. pack('<d', now) .. calendar end
  end

  -- Charge the amounts to the states, while all fit.
  local is_admitted, amount, amount_at = others < 2, nil, amounts_at
  for _, scope in ipairs(scopes) do
    for _, limit in ipairs(scope.limits) do
      if is_admitted then
        local change = algorithms[limit.letter]
        amount, amount_at = unpack_from('<d', numbers, amount_at)
        local full_at = change('take', limit.state, amount, limit)
        if not full_at and limit.keep < 0 then full_at = change('settle', limit.state, amount, limit) end
        is_admitted = full_at
        if full_at and full_at > scope.full_at then scope.full_at = full_at end
        if full_at and limit.usage > 0 and amount > 0 then count_usage(scope, limit, amount) end
      end
    end
  end
  if token_has_ended then return 'E' end
  reply = reply .. pack('<c1dd', is_admitted and 'A' or 'R', number, now)
  if is_admitted then
    -- New scopes are saved first, since only the first write is refused where memory is full. Counted usage gives way first.
    local values, has_written = {nil}, false
    for place, scope in ipairs(scopes) do
      if scope.stored == 0 then
        local refused
        values[place], refused = save(scope, false, not has_written)
        if refused then
          local is_full
          for _, other in ipairs(scopes) do -- others than the new ones were used before, or reset
            is_full = is_full or other.stored == 0 and call('EXISTS', other.key) == 0
          end
          if is_full and not (usage_list and usage_list().drop_oldest()) then return refused end
          for _, other in ipairs(scopes) do other.counts = other.counts and not is_full end
          values[place] = save(scope)
        end
        has_written = true
      end
    end
    for place, scope in ipairs(scopes) do reply = reply .. (values[place] or save(scope)) end
    if writes then write_now() end
    for _, scope in ipairs(scopes) do
      if scope.counts and scope.starts_hour then -- it is noted, so that its usage is collected; that of an earlier hour is finished
        local label = label_of(scope, first_label)
        if scope.stored_sums then add_finished_usage(label, scope.stored_sums) end
        keep_usage('o', scope.usage_field .. scope.key .. '\0' .. label)
      end
    end
    break
  end

  -- A caller that is rejected receives the states as they are, and then what it needs of logs.
  if others < 2 then
    writes = nil
    scopes = load_request(place, first_key, amounts_at, now)
    -- States that were written before the clock was set back are saved, so that time passes for them from now on; and
    -- those that were carried over, so that the present rules apply from now on.
    for _, scope in ipairs(scopes) do
      if scope.is_moved then save(scope) end
    end
    if writes then write_now() end
  end
  local entries = ''
  amount_at = amounts_at
  for _, scope in ipairs(scopes) do
    for _, limit in ipairs(scope.limits) do
      local state, change = limit.state, rejected and rejected[limit.letter]
      amount, amount_at = unpack_from('<d', numbers, amount_at)
      if change then
        local time, total = change(state, amount, limit)
        if time then entries = entries .. pack('<dd', time, total) end
      end
      state[1] = 0
      reply = reply .. pack(limit.format, unpack(state))
    end
  end
  reply = reply .. entries
end
return reply
