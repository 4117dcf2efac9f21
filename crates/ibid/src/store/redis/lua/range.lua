-- Reads a part of each order. KEYS orders. ARGV 1 first score 2 age of the last score in microseconds, or `+inf` 3 most members
-- 4 member to begin behind, among those with the first score. Returns the time, then for each order members and scores in turn.
local first, last, member = ARGV[1], ARGV[2], ARGV[4]
if last ~= '+inf' then
  last = string.format('%.0f', now - tonumber(last))
end

-- Returns whether a member comes behind `member` in the order of bytes. Lua's own comparison depends on the server's locale.
local function is_behind(other)
  for at = 1, #other do
    local one, two = other:byte(at), member:byte(at)
    if one ~= two then
      return one > two
    end
  end
  return false
end

-- Returns how many members with the first score are not behind `member`, which may have left the order since.
local function passed(order)
  local low, high = 0, redis.call('ZCOUNT', order, first, first)
  local before = high > 0 and redis.call('ZCOUNT', order, '-inf', '(' .. first)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_behind(redis.call('ZRANGE', order, before + middle, before + middle)[1]) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local reply = { now_s, now_us }
for place, order in ipairs(KEYS) do
  local offset = member ~= '' and passed(order) or 0
  reply[place + 2] = redis.call('ZRANGE', order, first, last, 'BYSCORE', 'LIMIT', offset, ARGV[3], 'WITHSCORES')
end
return reply
