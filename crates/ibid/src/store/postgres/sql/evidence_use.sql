-- Evidence is used up in the transaction of the change that it led to: only where that change is what stands now.
update ibid_evidence e
set open = false, purge_at = (extract(epoch from statement_timestamp()) * 1000000)::int8 + $6
where e.seq = any (array(
  select k.seq
  from unnest($1::bytea[], $2::int8[], $3::int8[], $4::text[], $5::text[]) as w (id, count, nonce, source, event)
  cross join lateral (
    select true from ibid_record x where x.id = w.id and x.count = w.count and x.nonce = w.nonce limit 1
  ) r
  cross join lateral (select v.seq from ibid_evidence v where v.source = w.source and v.event = w.event limit 1) k
))
