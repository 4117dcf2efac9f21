-- Removes effects. An end is permanent, so none of them has changed since.
start transaction;
delete c from $rows straight_join ibid_effect_call c force index (primary) on c.seq = w.seq;
delete e from $rows straight_join ibid_effect e force index (primary) on e.seq = w.seq;
commit
