-- Delete history lines after the number ?1 up to ?2 that were written by ?3 and whose record is gone.
delete from ibid_event
where seq > ?1 and seq <= ?2 and at <= ?3 and not exists (select 1 from ibid_record r where r.id = ibid_event.id)
