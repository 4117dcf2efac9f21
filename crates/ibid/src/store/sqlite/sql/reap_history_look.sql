-- How far one step over the history goes: the last of the next ?2 lines after ?1, their number, and when it was written.
select max(seq), count(*), max(at)
from (select seq, at from ibid_event where seq > ?1 order by seq limit ?2)
