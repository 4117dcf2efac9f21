-- The layout of a record, put before every script that reads or writes one. `record_bytes.rs` has the same layout.
--
--   1 format · 2–13 version (count, nonce) · 14 state · 15 flags · 16–23 birth · 24–31 policy · 32–39 lease · then the instants
--   created, ran, completed, due, expires, purge, 8 bytes each · 88 kind of response (0 none, 1 in the record, 2 its body apart,
--   3 encrypted) · 89–94 two lengths · kept columns · columns that a tombstone loses · response
--
-- An instant or interval is 5 bytes of seconds and 3 of microseconds: a Lua number holds microseconds exactly only until the
-- year 2255. Eight zero bytes are no instant, and the largest number of seconds is no interval. Nonces are never numbers.
local STATE, FLAGS, DUE, EXPIRES, PURGE = 14, 15, 64, 72, 80
local DEAD_LETTER, TOMBSTONE = 1, 128
local NO_INTERVAL = 1099511627775

-- The score of a record that is neither due nor reaped at any time: the largest number that a score holds exactly.
local NEVER = 9007199254740991

local clock = redis.call('TIME')
local now_s, now_us = tonumber(clock[1]), tonumber(clock[2])
local now = now_s * 1000000 + now_us

local function instant(s, us)
  return struct.pack('>I5I3', s, us)
end

-- Returns seconds and microseconds of the instant after an interval; zeros if there is no interval.
local function after_now(s, us)
  if s == NO_INTERVAL then
    return 0, 0
  end
  us = us + now_us
  if us >= 1000000 then
    return now_s + s + 1, us - 1000000
  end
  return now_s + s, us
end

-- Returns the instant after an interval, in microseconds.
local function after_interval(interval)
  local s, us = after_now(struct.unpack('>I5I3', interval))
  return s * 1000000 + us
end

-- Returns an instant of a record in microseconds, to compare with others; nil if it has none.
local function micros(record, at)
  local s, us = struct.unpack('>I5I3', record, at)
  if s > 0 then
    return s * 1000000 + us
  end
end

local function has_flag(record, flag)
  return record:byte(FLAGS) % (2 * flag) >= flag
end

local function has_passed(record, at)
  local instant_us = micros(record, at)
  return instant_us and instant_us <= now
end

-- Returns the instant at which the reaper strips or removes a record; nil: never.
local function reap_at(record)
  local purge = micros(record, PURGE)
  if not purge or has_flag(record, DEAD_LETTER) then
    return nil
  end
  local expires = micros(record, EXPIRES)
  if expires and expires < purge and not has_flag(record, TOMBSTONE) then
    return expires
  end
  return purge
end

-- Returns the place of a record in the order of its state: the next instant at which upkeep may have something to do.
local function score(record)
  local due, reap = micros(record, DUE) or NEVER, reap_at(record) or NEVER
  return math.min(due, reap, NEVER)
end
