-- Removes old lines of a record that is gone. KEYS 1 record 2 history 3 order of histories. ARGV 1 id 2 age in microseconds
-- 3 most lines 4 `1`: only look. Returns the number of lines.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
local before, most, only_looks = now - tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local lines = 0
while true do
  local line = redis.call('LINDEX', KEYS[2], only_looks and lines or 0)
  local at = line and micros(line, 1)
  if not at or at > before or lines >= most then
    if not only_looks and at then
      redis.call('ZADD', KEYS[3], at, ARGV[1])
    elseif not only_looks then
      redis.call('ZREM', KEYS[3], ARGV[1])
    end
    return lines
  end
  if not only_looks then
    redis.call('LPOP', KEYS[2])
  end
  lines = lines + 1
end
