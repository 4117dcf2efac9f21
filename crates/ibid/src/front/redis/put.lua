-- Puts an entry unless the one that is there was read at the same time or later. Both begin with the time of their read.
-- KEYS[1] entry; ARGV[1] bytes, ARGV[2] milliseconds to live
local old = redis.call('GETRANGE', KEYS[1], 0, 7)
if #old == 8 and struct.unpack('>I8', old) >= struct.unpack('>I8', ARGV[1]) then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
