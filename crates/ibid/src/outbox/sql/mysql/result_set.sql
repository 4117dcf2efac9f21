-- Sets or clears the result of the call of effect ?1, after commit.sql.
update ibid_effect_call set result = ?2 where seq = ?1
