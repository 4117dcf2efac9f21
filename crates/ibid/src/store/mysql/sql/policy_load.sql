-- Returns policies by their numbers, which follow.
select digest, data from ibid_policy where digest in
