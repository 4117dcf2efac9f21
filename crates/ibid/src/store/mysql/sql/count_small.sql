-- Counts the records of a small table by state.
select r.state, count(*) from ibid_record r group by r.state
