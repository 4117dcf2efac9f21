-- Rows past their time, oldest first.
select row from record where purge_at <= ?1 order by purge_at limit ?2
