-- Charge the first of several requests that fits. The plan: how many there are, and whether others are asked than the one
-- that comes first; then of each how many keys stand before its own, how many are its own, how many bytes of ARGV[2] are
-- about it, and where its own plan stands, which others may have, too. ARGV[2] starts with where in the plan each of them
-- stands, in the order in which they are to be asked, and goes on in that order; so does ARGV[3], which holds in whose name
-- each would take permits.
-- Replies: S stale, C another layout, T another time, or F and of each that was asked its turn, and what was decided.
local many, failover = unpack_from('<dd', plan)
local order, told = wanted, {'F'}
wanted = wanted + many * 8

local function decide(at, KEYS, wanted)
-- with: acquire
end

-- Decide on one; gives the reply when no other has to be asked.
local function ask(turn, at, before, count, wanted)
  holder, writes, restores = string.sub(ARGV[3], turn * 16 - 15, turn * 16), nil, nil
  local reply = decide(at, {KEYS[1], unpack(KEYS, before + 1, before + count)}, wanted)
  local status = string.sub(reply, 1, 1)
  if status == 'S' or status == 'C' then return status end
  told[#told + 1] = pack('<dd', turn, #reply) .. reply
  if status ~= 'R' then return recorded(table.concat(told)) end
end
