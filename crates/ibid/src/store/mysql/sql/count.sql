-- Counts the records by state, through an index, in the states ?1 to ?4, which few records have.
select r.state, count(*)
from ibid_record r force index (ibid_record_due)
where r.state = ?1 or r.state = ?2 or r.state = ?3 or r.state = ?4
group by r.state
