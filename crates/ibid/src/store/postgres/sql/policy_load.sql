-- Returns policies by their numbers.
select digest, data from ibid_policy where digest = any ($1::int8[])
