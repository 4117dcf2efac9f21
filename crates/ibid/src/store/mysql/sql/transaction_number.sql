-- Makes the server give this transaction a number, as it does for the first lock. No setting has this name.
select 1 from ibid_meta m where m.name = '' for update
