-- What is kept under a name.
select value from meta where name = ?1
