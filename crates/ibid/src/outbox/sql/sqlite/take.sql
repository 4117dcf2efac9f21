-- Claims the effects in the JSON array ?2, which this transaction has picked: they go to the state ?3 for their lease. A
-- claim that counts (?5) is a try, and the first sets the instant of the first call.
update ibid_effect set
  state = ?3, count = count + 1, nonce = ?4, tries = tries + ?5, due_at = ?1 + lease_us,
  called_at = iif(?5, coalesce(called_at, ?1), called_at)
where seq in (select n.value from json_each(?2) n)
