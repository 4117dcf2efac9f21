-- The hot path where only finishes wait, none with a large response: flight.sql without begins.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
  where current_setting('ibid.settings', true) = 'on'
),
done as (
  update ibid_record r set
    nonce = v.nonce, due_at = null, completed_at = (select now from clock),
    expires_at = (select now from clock) + v.expires_us, purge_at = (select now from clock) + v.purge_us,
    watch_at = null, count = 2, status = v.status, state = v.state, flags = v.flags, watch_state = null,
    note = v.note, lines = v.lines, body = v.body
  from unnest($1::ibid_finish_row[]) v
  where r.ctid = v.tid and r.id is not distinct from v.id and r.count = (select 1 from clock) and r.nonce = v.was_nonce
  returning r.nonce
)
select c.now, null::tid[], array(select nonce from done)
from clock c
