-- Watch the records after the row ?1 up to ?2 that still run.
update ibid_record set watch_at = due_at where row > ?1 and row <= ?2 and watch_at is null and due_at is not null
