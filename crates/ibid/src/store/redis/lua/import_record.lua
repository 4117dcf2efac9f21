-- Stores a record of a copy. KEYS 1 record 2 bodies 3 policies 4 dead letters 5–9 orders of the states. ARGV 3 id 4 record 5 policy
-- 6… bodies, each a kind and its bytes. Returns 1.
--
-- An earlier version of the record is replaced. If the fence was tested before the batch, only one of the same generation is:
-- otherwise a late batch could overwrite what was begun since.
local id, record = ARGV[3], ARGV[4]
local old = redis.call('GET', KEYS[1])
if old then
  local is_later = struct.unpack('>I4', record, 2) > struct.unpack('>I4', old, 2)
  if not is_fenced and not (is_later and old:sub(16, 23) == record:sub(16, 23)) then
    return 1
  end
  redis.call('ZREM', KEYS[4 + old:byte(STATE)], id)
  redis.call('ZREM', KEYS[4], id)
  redis.call('DEL', KEYS[2])
end
redis.call('HSETNX', KEYS[3], record:sub(24, 31), ARGV[5])
redis.call('ZADD', KEYS[4 + record:byte(STATE)], score(record), id)
if has_flag(record, DEAD_LETTER) then
  redis.call('ZADD', KEYS[4], score(record), id)
end
for at = 6, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
end
redis.call('SET', KEYS[1], record)
return 1
