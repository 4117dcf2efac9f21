-- Handles up to $1 turns: unblocks the first open effect of each aggregate in which an effect was enqueued or has ended.
--
-- Every enqueue and every end of an effect with an aggregate adds a turn in its transaction, and only this statement unblocks.
-- The tempting alternative is to unblock the next effect in the transaction that ends the one before it:
--
-- - T1 enqueues B behind A, and is not committed; T2 ends A, sees no B, commits; T1 commits: B would stay blocked. Here T1's
--   turn becomes visible with B, and the next look finds B first.
-- - T1 enqueues B and commits; T3, this statement, began before T2 commits, sees A as open and leaves B blocked; T2, which
--   ends A, commits. T2's turn is visible only then, so the next look handles it and finds B first.
-- - If T2 waited for the lock that T1 holds, it would wait for the caller's work, with A and the handler's rows locked: T1 may
--   wait for one of those.
--
-- Turns are added and deleted, never changed: a turn that this snapshot shows comes with all that its transaction wrote. A first
-- effect that another transaction has locked is skipped, and its turn stays for the next look: two looks that wait for each
-- other's effects would deadlock, and that transaction may roll back.
-- The first effect is found by one step into its index: the server would walk the primary key instead, and read all effects
-- before it, if tenant and aggregate were compared for equality. Effects are locked one by one for the same reason: for a list
-- of numbers the server may choose to read the whole table, and keeps that plan when the table has grown.
-- Invariant: if the first open effect of an aggregate is blocked, the aggregate has a turn.
with picked as materialized (
       select x.id, x.tenant, x.aggregate
       from ibid_effect_turn x
       where x.id > 0
       order by x.id
       limit $1
       for update of x skip locked
     ),
     head as materialized (
       select a.tenant, a.aggregate, o.seq, o.blocked
       from (select distinct p.tenant, p.aggregate from picked p) a
       left join lateral (
         select x.tenant, x.aggregate, x.seq, x.blocked
         from ibid_effect x
         where (x.tenant, x.aggregate, x.seq) >= (a.tenant, a.aggregate, 0) and x.aggregate is not null and x.done_at is null
         order by x.tenant, x.aggregate, x.seq
         limit 1
       ) o on o.tenant = a.tenant and o.aggregate = a.aggregate
     ),
     locked as materialized (
       select e.*
       from (select h.seq from head h where h.blocked) h
       cross join lateral (
         select x.*
         from ibid_effect x
         where x.seq = h.seq and x.blocked and x.done_at is null
         limit 1
         for no key update of x skip locked
       ) e
     ),
     unblocked as (
       -- Each row is there and locked, so the insert always meets it. Written so, it is found by its number whatever the server
       -- expects; an update may be planned as a scan.
       insert into ibid_effect as e
       select l.* from locked l
       on conflict (seq) do update set blocked = false
       returning 1
     ),
     handled as (
       delete from ibid_effect_turn x
       where x.id = any (array(
         select p.id
         from picked p
         join head h on h.tenant = p.tenant and h.aggregate = p.aggregate
         where h.blocked is not true or h.seq = any (array(select l.seq from locked l))
       ))
       returning 1
     )
select (select count(*) from handled), (select count(*) from unblocked)
