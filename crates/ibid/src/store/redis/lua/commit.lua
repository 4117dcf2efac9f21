-- Commits a change if the stored record is the expected one.
--
-- KEYS 1 record 2 bodies 3 history 4 order of histories 5 policies 6 dead letters 7–11 orders of the states; with evidence
-- 12 evidence 13 purge order 14 order of open evidence 15 open evidence of this record
-- ARGV 1 id 2 `absent`, `version`, `due` or `anything` 3 expected version 4 draft; empty: only history 5 `1`: clear bodies
-- 6 policy; empty: stored before 7 digest of the event that it uses 8 retention of used evidence 9 number of bodies 10… bodies, each
-- a kind and its bytes; then lines of history
--
-- Returns 1: done; 0: the stored record and the body of its response, if that is apart; 2: the policy is needed.
-- Every test comes before the first write, and the record is written last: whatever an order says, only records count.
local old = redis.call('GET', KEYS[1])
local expect = ARGV[2]
local fits = true
if expect == 'absent' then
  fits = not old
elseif expect ~= 'anything' then
  fits = old and old:byte(1) == 1 and old:sub(2, 13) == ARGV[3] and (expect == 'version' or has_passed(old, DUE))
end
if not fits then
  local body = old and old:byte(88) == 2 and redis.call('HGET', KEYS[2], '1')
  return { 0, now_s, now_us, old, body }
end

local id, draft, bodies = ARGV[1], ARGV[4], tonumber(ARGV[9])
if draft ~= '' then
  local record = drafted(draft, old)
  local policy = record:sub(24, 31)
  if not (old and old:sub(24, 31) == policy) and redis.call('HEXISTS', KEYS[5], policy) == 0 then
    if ARGV[6] == '' then
      return { 2, now_s, now_us }
    end
    redis.call('HSET', KEYS[5], policy, ARGV[6])
  end

  local state = record:byte(STATE)
  if old and old:byte(STATE) ~= state then
    redis.call('ZREM', KEYS[6 + old:byte(STATE)], id)
  end
  redis.call('ZADD', KEYS[6 + state], score(record), id)
  if has_flag(record, DEAD_LETTER) then
    redis.call('ZADD', KEYS[6], score(record), id)
  elseif old and has_flag(old, DEAD_LETTER) then
    redis.call('ZREM', KEYS[6], id)
  end
  if ARGV[5] == '1' and old then
    redis.call('DEL', KEYS[2])
  end
  for at = 10, 8 + 2 * bodies, 2 do
    redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  end
  local evidence = KEYS[12] and redis.call('GET', KEYS[12])
  if evidence then
    redis.call('ZADD', KEYS[13], after_interval(ARGV[8]), ARGV[7])
    redis.call('ZREM', KEYS[14], ARGV[7])
    redis.call('ZREM', KEYS[15], ARGV[7])
    redis.call('SET', KEYS[12], '\0' .. evidence:sub(2))
  end
  redis.call('SET', KEYS[1], record)
end

for at = 10 + 2 * bodies, #ARGV do
  redis.call('RPUSH', KEYS[3], NOW .. ARGV[at])
  redis.call('ZADD', KEYS[4], 'NX', now, id)
end
return { 1, now_s, now_us }
