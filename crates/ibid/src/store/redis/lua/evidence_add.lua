-- Stores evidence unless its event is known. KEYS 1 evidence 2 purge order 3 order of open evidence 4 open evidence of its record.
-- ARGV 1 digest of the event 2 age 3 retention, both as intervals 4 columns. Returns 1 or 0 for new or known, and the evidence:
-- 1 open, then the instant that it is about, then the columns.
local old = redis.call('GET', KEYS[1])
if old then
  return { 0, old }
end
local age_s, age_us = struct.unpack('>I5I3', ARGV[2])
local s, us = now_s - age_s, now_us - age_us
if us < 0 then
  s, us = s - 1, us + 1000000
end
local evidence = '\1' .. instant(math.max(s, 0), us) .. ARGV[4]
redis.call('ZADD', KEYS[2], after_interval(ARGV[3]), ARGV[1])
redis.call('ZADD', KEYS[3], now, ARGV[1])
redis.call('ZADD', KEYS[4], now, ARGV[1])
redis.call('SET', KEYS[1], evidence)
return { 1, evidence }
