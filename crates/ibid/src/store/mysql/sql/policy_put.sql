-- Stores policies. Their values follow, then policy_seen.sql.
insert into ibid_policy (digest, seen_at, lease_us, keep_us, data)
