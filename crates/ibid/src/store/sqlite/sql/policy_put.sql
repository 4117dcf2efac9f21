-- The number of a policy, which is seen now. A number that its deletion took is never given again.
insert into ibid_policy (data, lease_us, life_us, seen_at) values (?1, ?2, ?3, ?4)
on conflict (data) do update set seen_at = max(seen_at, excluded.seen_at)
returning id
