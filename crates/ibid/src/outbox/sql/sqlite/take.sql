-- Claims up to ?7 due effects of the kinds in ?6: from state ?2, held in state ?3 for their lease. Returns their numbers.
--
-- Each kind has a bounded scan, so effects of other kinds cost nothing; blocked effects are not in the index. Of the
-- due effects of all kinds, the oldest are claimed. A claim that counts (?5) is a try, and the first sets the instant of the
-- first call.
update ibid_effect set
  state = ?3, count = count + 1, nonce = ?4, tries = tries + ?5, due_at = ?1 + lease_us,
  called_at = iif(?5, coalesce(called_at, ?1), called_at)
where seq in (
  select e.seq
  from json_each(?6) k
  cross join ibid_effect e
  where e.seq in (
    select x.seq
    from ibid_effect x indexed by ibid_effect_due
    where x.kind = k.value and x.state = ?2 and x.blocked = 0 and x.due_at <= ?1
    order by x.due_at
    limit ?7
  )
  order by e.due_at
  limit ?7
)
returning seq
