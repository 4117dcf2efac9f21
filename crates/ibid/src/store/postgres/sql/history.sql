-- Returns the history of one record, oldest first.
select at, what, detail from ibid_event where id = $1::uuid order by seq
