-- Notes the id that an event is about, unless it is noted. KEYS 1 pointer. ARGV 1 id 2 milliseconds after which Redis may delete the
-- pointer, if nothing else has: it would stay if its evidence was never stored. Returns the noted id.
local noted = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET') or ARGV[1]
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return noted
