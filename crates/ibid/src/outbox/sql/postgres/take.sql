-- Claims the effects in the JSON array $2, which this transaction has picked and locked: they go to the state $3 for their lease.
-- effect.sql follows.
--
-- A claim that counts ($5) is a try, and the first sets the instant of the first call. A worker that falls silent with
-- claimed rows locked is cut off after their lease, because looks would skip them as long as it holds the locks. With $6 the
-- session's commit waits for the disk, and for synchronous standbys: after a claim that was lost, the call would be made again.
with t as materialized (
       select coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now,
              case when $6::boolean and current_setting('synchronous_commit') not in ('on', 'remote_apply')
                   then set_config('synchronous_commit', 'on', true) end as raised
     ),
     e as (
       update ibid_effect e set
         state = $3::int8::int2, count = e.count + 1, nonce = $4, tries = e.tries + $5::int8::int4, due_at = t.now + e.lease_us,
         called_at = case $5::int8 when 0 then e.called_at else coalesce(e.called_at, t.now) end
       from t
       where e.seq = any (array(select json_array_elements_text($2::text::json)::int8))
         and set_config('idle_in_transaction_session_timeout',
                        least(greatest(e.lease_us / 1000, 1), 2147483647)::text, true) <> ''
       returning e.*
     )
