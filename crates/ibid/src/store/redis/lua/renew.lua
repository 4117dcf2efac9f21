-- Moves the due instant of a record to now + its lease. KEYS 1 record 2–6 orders of the states. ARGV 1 id 2 version.
-- Returns the new instant as seconds and microseconds; nothing if the record is at another version or never due.
local old = redis.call('GET', KEYS[1])
if not (old and old:byte(1) == 1 and old:sub(2, 13) == ARGV[2] and micros(old, DUE)) then
  return {}
end
local until_at = instant(after_now(struct.unpack('>I5I3', old, 32)))
local record = old:sub(1, DUE - 1) .. until_at .. old:sub(DUE + 8)
redis.call('ZADD', KEYS[1 + record:byte(STATE)], score(record), ARGV[1])
redis.call('SET', KEYS[1], record)
local s, us = struct.unpack('>I5I3', until_at)
return { s, us }
