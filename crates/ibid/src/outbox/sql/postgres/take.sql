-- Claims up to $7 due effects of the kinds in $6: from state $2, held in state $3 for their lease. effect.sql follows.
--
-- Each kind has a bounded scan, so effects of other kinds cost nothing; blocked effects are not in the index. Of the
-- due effects of all kinds, the oldest are claimed. A claim that counts ($5) is a try, and the first sets the instant of the
-- first call. Effects that another worker is claiming or ending are skipped. A worker that falls silent with claimed rows locked
-- is cut off after their lease, because looks would skip them as long as it holds the locks. With $8 the session's commit waits for the
-- disk, and for synchronous standbys: after a claim that was lost, the call would be made again.
with t as materialized (
       select coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now,
              case when $8::boolean and current_setting('synchronous_commit') not in ('on', 'remote_apply')
                   then set_config('synchronous_commit', 'on', true) end as raised
     ),
     picked as materialized (
       select p.seq
       from (select json_array_elements_text($6::text::json) as kind) k
       cross join lateral (
         select x.seq, x.due_at
         from ibid_effect x
         where x.kind = k.kind and x.state = $2::int8::int2 and not x.blocked and x.due_at <= (select t.now from t)
         order by x.due_at
         limit $7
         for no key update of x skip locked
       ) p
       order by p.due_at
       limit $7
     ),
     e as (
       update ibid_effect e set
         state = $3::int8::int2, count = e.count + 1, nonce = $4, tries = e.tries + $5::int8::int4, due_at = t.now + e.lease_us,
         called_at = case $5::int8 when 0 then e.called_at else coalesce(e.called_at, t.now) end
       from t
       where e.seq = any (array(select p.seq from picked p))
         and set_config('idle_in_transaction_session_timeout',
                        least(greatest(e.lease_us / 1000, 1), 2147483647)::text, true) <> ''
       returning e.*
     )
