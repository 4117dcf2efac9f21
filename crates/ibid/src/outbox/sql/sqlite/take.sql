-- Take up to ?7 due effects of the kinds in ?6 from one state, to hold them in another for their lease. Of an aggregate
-- only the first that is open. A take that counts (?5) is a try, and the first is the instant of the first call. ?8 is
-- PostgreSQL's.
update ibid_effect set
  state = ?3, count = count + 1, nonce = ?4, tries = tries + ?5, due_at = ?1 + lease_us,
  called_at = iif(?5, coalesce(called_at, ?1), called_at)
where seq in (
  select e.seq
  from ibid_effect e indexed by ibid_effect_due
  where e.state = ?2 and e.due_at <= ?1
    and e.kind in (select k.value from json_each(?6) k)
    and (e.aggregate is null or not exists (
      select 1 from ibid_effect o where o.aggregate = e.aggregate and o.open = 1 and o.seq < e.seq))
  order by e.due_at
  limit ?7
) and ?8 = ?8
returning seq, record, birth, tenant, name, kind, count, nonce, state, tries, due_at, created_at, called_at, ended_at, done_at,
  aggregate, downstream_key, rules, owes, trace, payload, result, provider_id, last_error, ?1
