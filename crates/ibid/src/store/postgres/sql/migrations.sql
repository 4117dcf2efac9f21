-- Which steps were taken.
select number, digest from ibid_migration order by number
