-- Replaces the changing part of an effect at the version that was read. No row comes back if another process changed it since.
--
-- The marks $11 (first call) and $13 (end of the last call): 0 keeps the instant, 1 sets it to now, 2 clears it. Result and
-- provider's id belong to the call, so they go when its instant is cleared. An effect that ends leaves a turn for its
-- aggregate; turns.sql says why it unblocks no other effect here. A worker that falls silent with the row locked is cut off
-- after the effect's lease, because looks skip locked rows. With $17 the session's commit waits for the disk, and for
-- synchronous standbys.
with t as materialized (
       select coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now,
              case when $17::boolean and current_setting('synchronous_commit') not in ('on', 'remote_apply')
                   then set_config('synchronous_commit', 'on', true) end as raised
     ),
     e as (
       update ibid_effect e set
         count = $5::int8::int4, nonce = $6, state = $7::int8::int2, dead_letter = $8, tries = $9::int8::int4, due_at = t.now + $10,
         called_at = case $11::int8 when 0 then e.called_at when 1 then t.now end,
         ended_at = case $13::int8 when 0 then e.ended_at when 1 then t.now end,
         done_at = case when $12::boolean then t.now else e.done_at end,
         provider_id = case when $11::int8 = 2 then $14 else coalesce($14, e.provider_id) end,
         last_error = coalesce($15, e.last_error)
       from t
       where e.seq = $2 and e.count = $3::int8::int4 and e.nonce = $4
         and set_config('idle_in_transaction_session_timeout',
                        least(greatest(e.lease_us / 1000, 1), 2147483647)::text, true) <> ''
       returning e.seq, e.tenant, e.aggregate, t.now
     ),
     r as (
       update ibid_effect_call c set result = $16::bytea
       from e
       where c.seq = e.seq and ($16::bytea is not null or $11::int8 = 2)
     ),
     n as (
       insert into ibid_effect_turn (tenant, aggregate)
       select e.tenant, e.aggregate
       from e
       where e.aggregate is not null and $12::boolean
     )
select e.now from e
