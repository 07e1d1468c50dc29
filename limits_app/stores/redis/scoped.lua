  -- What was read may have been written under another layout, or by nobody yet.
  if not raw then
    newcomers, raw = true, name .. string.rep('\0', size - 6)
  elseif string.sub(raw, 1, 6) ~= name then
    changed = true
  end
  formats[index], raws[index], full_at[index] = format, raw, 0
end
if changed then return 'C' end
for index = 1, count do states[index] = {unpack_from(formats[index], raws[index])} end
