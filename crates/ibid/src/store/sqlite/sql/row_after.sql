-- The last of the next ?2 rows after the row ?1; null: there are none.
select max(row) from (select row from ibid_record where row > ?1 order by row limit ?2)
