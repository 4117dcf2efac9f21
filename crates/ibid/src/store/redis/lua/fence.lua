-- The fence of a copy, put before every script that stores its rows. ARGV 1 name of a setting 2 value that it must have. The last
-- of KEYS has the settings. In a cluster they are in another slot: the name is empty, and the caller has tested the fence.
-- Returns 0 if the fence does not hold.
local is_fenced = ARGV[1] ~= ''
if is_fenced and redis.call('HGET', KEYS[#KEYS], ARGV[1]) ~= ARGV[2] then
  return 0
end
