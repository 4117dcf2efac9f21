-- Whether a policy was seen so long before ?1 that it may go.
select exists (select 1 from ibid_policy where seen_at < ?1 - life_us)
