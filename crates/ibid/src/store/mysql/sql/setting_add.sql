-- The first writer wins. Returns the value that is there.
start transaction;
insert into ibid_meta (name, value) values (?1, ?2) on duplicate key update name = name;
select value from ibid_meta where name = ?1;
commit
