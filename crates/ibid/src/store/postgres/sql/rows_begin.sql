-- What is read is one snapshot, and nothing is written.
begin isolation level repeatable read read only
