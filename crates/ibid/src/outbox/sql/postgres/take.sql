-- Take up to $7 due effects of the kinds in $6 from one state, to hold them in another for their lease. Of an aggregate
-- only the first that is open. A take that counts ($5) is a try, and the first is the instant of the first call. What
-- another worker is taking or ending is passed over. A worker that falls silent with rows taken is cut off after their
-- lease: they would be passed over for ever. Where it must last ($8) the session's commit waits for the disk, and for
-- synchronous standbys: a call under a claim that is forgotten would be made again.
with t as materialized (
       select coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now,
              case when $8::boolean and current_setting('synchronous_commit') not in ('on', 'remote_apply')
                   then set_config('synchronous_commit', 'on', true) end as raised
     ),
     picked as materialized (
       select e.seq
       from ibid_effect e
       where e.state = $2::int8::int2 and e.due_at <= (select t.now from t)
         and e.kind = any (array(select json_array_elements_text($6::text::json)))
         and (e.aggregate is null or not exists (
           select 1 from ibid_effect o where o.aggregate = e.aggregate and o.open and o.seq < e.seq))
       order by e.due_at
       limit $7
       for no key update of e skip locked
     )
update ibid_effect e set
  state = $3::int8::int2, count = e.count + 1, nonce = $4, tries = e.tries + $5::int8::int4, due_at = t.now + e.lease_us,
  called_at = case $5::int8 when 0 then e.called_at else coalesce(e.called_at, t.now) end
from picked p, t
where e.seq = p.seq
  and set_config('idle_in_transaction_session_timeout', least(greatest(e.lease_us / 1000, 1), 2147483647)::text, true) <> ''
returning e.seq, e.record, e.birth, e.tenant, e.name, e.kind, e.count::int8, e.nonce, e.state::int8, e.tries::int8, e.due_at,
  e.created_at, e.called_at, e.ended_at, e.done_at, e.aggregate, e.downstream_key, e.rules, e.owes, e.trace, e.payload, e.result,
  e.provider_id, e.last_error, t.now
