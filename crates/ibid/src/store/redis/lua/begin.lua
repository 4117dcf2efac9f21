-- Inserts new records, each unless its key is taken. KEYS for each: record, bodies, order of its state. ARGV drafts. Their policies
-- are stored. Returns the time, then for each key that is taken: its number, the record, and the body of its response if that is
-- apart.
local reply = { now_s, now_us }
for n, draft in ipairs(ARGV) do
  local key, record = KEYS[3 * n - 2], drafted(draft)
  if redis.call('SET', key, record, 'NX') then
    redis.call('ZADD', KEYS[3 * n], score(record), key:sub(ID))
  else
    local old = redis.call('GET', key)
    reply[#reply + 1] = { n, old, old:byte(88) == 2 and redis.call('HGET', KEYS[3 * n - 1], '1') }
  end
end
return reply
