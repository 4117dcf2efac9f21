-- Notes the id that an event of a copy is about, unless one is noted. KEYS 1 pointer. ARGV 3 id. Returns 1, or 2 if another id is noted.
local noted = redis.call('SET', KEYS[1], ARGV[3], 'NX', 'GET')
return noted and noted ~= ARGV[3] and 2 or 1
