-- Sets a setting where its value is the expected one. KEYS 1 settings. ARGV 1 name 2 new value 3 expected value; no third
-- argument: it was never set. Returns the value that is stored afterwards.
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored == (ARGV[3] or false) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  return ARGV[2]
end
return stored
