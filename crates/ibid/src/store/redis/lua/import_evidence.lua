-- Stores evidence of a copy. KEYS 1 evidence 2 purge order 3 order of open evidence 4 open evidence of its record. ARGV 3 digest of
-- the event 4 evidence 5 instant at which it is purged, in microseconds. Returns 1.
--
-- If the fence was tested before the batch, used evidence stays used: a late batch could open it again. The arrival is not copied;
-- the instant that the evidence is about gives the same order.
local old = redis.call('GET', KEYS[1])
if old and not is_fenced and old:byte(1) == 0 then
  return 1
end
redis.call('ZADD', KEYS[2], ARGV[5], ARGV[3])
if ARGV[4]:byte(1) == 1 then
  local as_of = micros(ARGV[4], 2) or 0
  redis.call('ZADD', KEYS[3], as_of, ARGV[3])
  redis.call('ZADD', KEYS[4], as_of, ARGV[3])
else
  redis.call('ZREM', KEYS[3], ARGV[3])
  redis.call('ZREM', KEYS[4], ARGV[3])
end
redis.call('SET', KEYS[1], ARGV[4])
return 1
