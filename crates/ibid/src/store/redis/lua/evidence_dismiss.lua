-- Closes evidence that cannot be used any more. KEYS 1 evidence 2 order of open evidence 3 open evidence of its record.
-- ARGV 1 digest of the event.
local old = redis.call('GET', KEYS[1])
if old then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('SET', KEYS[1], '\0' .. old:sub(2))
end
return 1
