-- Reads the history of the ids behind ?1, at most ?2 ids, in the order of ids.
select e.id, e.at, e.what, e.detail
from (select distinct x.id from ibid_event x where x.id > ?1 order by x.id limit ?2) i
join ibid_event e on e.id = i.id
order by e.id, e.seq
