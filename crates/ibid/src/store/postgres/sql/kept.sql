-- What is kept under a name.
select value from ibid_meta where name = $1
