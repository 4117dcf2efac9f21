-- A set of rules that no record had before.
insert into policy (data) values (?1)
