-- Removes a record that is past its purge instant, or strips one that is only expired. KEYS 1 record 2 bodies 3–7 orders
-- of the states. ARGV 1 id 2 number of the order in which the id was found 3 `1`: only look. Returns 2: removed; 1: stripped;
-- 0: not yet.
local old = redis.call('GET', KEYS[1])
local only_looks = ARGV[3] == '1'
if not old then
  if not only_looks then
    redis.call('ZREM', KEYS[2 + tonumber(ARGV[2])], ARGV[1])
  end
  return 0
end
local at = old:byte(1) == 1 and reap_at(old)
if not at or at > now then
  return 0
end
if only_looks then
  return has_passed(old, PURGE) and 2 or 1
end
local order = KEYS[2 + old:byte(STATE)]
if has_passed(old, PURGE) then
  redis.call('ZREM', order, ARGV[1])
  redis.call('DEL', KEYS[1], KEYS[2])
  return 2
end
-- Stripping is a write like any other: a writer that read the record before loses. The nonce stays, and the count moves on.
local count = struct.unpack('>I4', old, 2)
local kept = struct.unpack('>I2', old, 89)
local record = old:sub(1, 1) .. struct.pack('>I4', (count + 1) % 4294967296) .. old:sub(6, 14)
  .. string.char(old:byte(FLAGS) + TOMBSTONE) .. old:sub(16, 87) .. '\0' .. struct.pack('>I2I4', kept, 0)
  .. old:sub(95, 94 + kept)
redis.call('ZADD', order, score(record), ARGV[1])
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[1], record)
return 1
