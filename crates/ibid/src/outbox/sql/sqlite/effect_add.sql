-- Enqueues an effect, second step: the part that changes. An effect of an aggregate starts blocked, and the next look of a
-- worker decides whether it is the first (turn_add.sql, turns.sql).
insert into ibid_effect (
  seq, nonce, due_at, lease_us, created_at, count, tries, state, blocked, dead_letter, tenant, kind, aggregate
) values (?1, ?3, ?2 + ?4, ?5, ?2, 1, 0, ?6, ?9 is not null, 0, ?7, ?8, ?9)
