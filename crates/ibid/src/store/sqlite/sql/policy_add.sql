-- A set of rules that no record had before.
insert into ibid_policy (data) values (?1)
