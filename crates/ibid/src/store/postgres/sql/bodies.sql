-- All that one generation of a record keeps beside it.
select kind, data from ibid_body where id = $1 and birth = $2 order by kind
