-- What is read is one snapshot, and nothing is written.
set session transaction isolation level repeatable read; start transaction read only
