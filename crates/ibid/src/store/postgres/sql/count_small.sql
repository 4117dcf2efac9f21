-- Counts the records of a small table by state.
select state, count(*) from ibid_record group by state
