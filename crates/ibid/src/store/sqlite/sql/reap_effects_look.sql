-- Finds how far one step over effects goes: the last of the next ?2 after the number ?1, how many these are, the youngest instant.
select max(seq), count(*), max(created_at)
from (select seq, created_at from ibid_effect where seq > ?1 order by seq limit ?2)
