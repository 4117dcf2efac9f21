-- How many policies no record can name any more at ?1.
select 0, count(*) from ibid_policy p
where p.seen_at < ?1 - p.life_us
  and not exists (select 1 from ibid_reap_range where at <= ?1)
  and not exists (select 1 from ibid_record r indexed by ibid_record_open where r.watch_at is not null and r.policy = p.id)
  and not exists (select 1 from ibid_record r indexed by ibid_record_reap
                  where r.reap_at is not null and r.reap_at <= ?1 and r.policy = p.id)
