view = {}
-- with: view
at, wanted = first_ask, first_wanted
for ask = 1, asks do
  local name, scope, offset, a, b, c, key, amount, _
  name, scope, offset, a, b, c, key, _, at = unpack_from('<sddddddd', plan, at)
  amount, wanted = unpack_from('<d', ARGV[2], wanted)
  if view[name] then
    reply = reply .. view[name]({unpack_from(formats[scope], raws[scope])}, offset, now, amount, a, b, c, KEYS[key])
  end
end
