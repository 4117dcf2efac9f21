-- Returns the standbys of this server. To a user without the role `pg_read_all_stats` the states are null. A backup is no standby,
-- and a failover never goes to a logical subscriber.
select r.application_name, r.sync_state
  from pg_stat_replication r
  left join pg_replication_slots s on s.active_pid = r.pid
 where coalesce(r.state, 'streaming') in ('streaming', 'catchup')
   and s.slot_type is distinct from 'logical'
 order by r.application_name
