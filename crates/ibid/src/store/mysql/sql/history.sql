-- Returns the history of one record, oldest first.
select at, what, detail from ibid_event force index (ibid_event_id) where id = ?1 order by seq
