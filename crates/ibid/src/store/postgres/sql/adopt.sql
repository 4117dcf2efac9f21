-- Put some records into the orders that are in none: those of an older schema, and those that older processes write.
with strays as materialized (
  select r.id from ibid_record r where r.reap_at is null limit $1 for no key update skip locked
)
update ibid_record r
   set reap_at = coalesce(
         case when r.bare then r.purge_at else least(r.expires_at, r.purge_at) end,
         (extract(epoch from statement_timestamp()) * 1000000)::int8
       ),
       watch_state = case when r.due_at is not null then r.state end,
       watch_at = r.due_at
 where r.id = any (array(select id from strays))
returning 1
