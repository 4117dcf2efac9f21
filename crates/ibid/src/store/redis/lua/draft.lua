-- Makes a record from a draft, put before every script that commits changes. A draft is
--
--   1–3 marks of created, ran and completed: 0 keep, 1 now, 2 clear · 4–27 intervals until due, expires and purge · 28–66 the first
--   39 bytes of the record · 67 kind of response, or 255: that of the record before · the rest of the record
local NOW, NONE = instant(now_s, now_us), instant(0, 0)

-- Where the id begins in the key of a record: behind `ibid{xx}r`.
local ID = 10

local function marked(draft, mark, old, at)
  local code = draft:byte(mark)
  if code == 1 then
    return NOW
  elseif code == 0 and old then
    return old:sub(at, at + 7)
  end
  return NONE
end

-- Returns the record that a draft makes from the one before, if any.
local function drafted(draft, old)
  local due_s, due_us, expires_s, expires_us, purge_s, purge_us = struct.unpack('>I5I3I5I3I5I3', draft, 4)
  due_s, due_us = after_now(due_s, due_us)
  expires_s, expires_us = after_now(expires_s, expires_us)
  purge_s, purge_us = after_now(purge_s, purge_us)
  local created = marked(draft, 1, old, 40)
  if created == NONE then
    created = NOW
  end
  local response = draft:sub(67)
  if response:byte(1) == 255 then
    local kind, columns = '\0', ''
    if old and old:sub(16, 23) == draft:sub(43, 50) then
      local kept, lost = struct.unpack('>I2I4', old, 89)
      kind, columns = old:sub(88, 88), old:sub(95 + kept + lost)
    end
    response = kind .. response:sub(2) .. columns
  end
  return draft:sub(28, 66) .. created .. marked(draft, 2, old, 48) .. marked(draft, 3, old, 56)
    .. struct.pack('>I5I3I5I3I5I3', due_s, due_us, expires_s, expires_us, purge_s, purge_us) .. response
end
