-- Ends attempts, each if its record is at the expected version. KEYS for each: record, bodies, orders of its state and of its next one.
-- ARGV for each: state, expected version, draft. Returns the time, then for each record that was left alone its number, and if
-- another version is stored or none, that record and the body of its response if that is apart.
local reply = { now_s, now_us }
for n, argument in ipairs(ARGV) do
  local key = KEYS[4 * n - 3]
  local old = redis.call('GET', key)
  if not old or old:byte(1) ~= 1 or old:sub(2, 13) ~= argument:sub(2, 13) then
    reply[#reply + 1] = { n, old, old and old:byte(88) == 2 and redis.call('HGET', KEYS[4 * n - 2], '1') }
  elseif old:byte(STATE) ~= argument:byte(1) or has_flag(old, DEAD_LETTER) or old:sub(16, 31) ~= argument:sub(56, 71) then
    -- `commit.lua` declares the keys that this one needs.
    reply[#reply + 1] = { n }
  else
    local record = drafted(argument:sub(14), old)
    redis.call('ZREM', KEYS[4 * n - 1], key:sub(ID))
    redis.call('ZADD', KEYS[4 * n], score(record), key:sub(ID))
    redis.call('SET', key, record)
  end
end
return reply
