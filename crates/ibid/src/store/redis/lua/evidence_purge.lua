-- Deletes evidence whose time is over. KEYS 1 evidence 2 purge order 3 order of open evidence 4 open evidence of its record.
-- ARGV 1 digest of the event. Returns 1 if it was deleted.
local at = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not at or tonumber(at) > now then
  return 0
end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
return redis.call('DEL', KEYS[1])
