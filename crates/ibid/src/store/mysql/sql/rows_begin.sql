-- What is read is one snapshot with all of its rows, whatever the server's default, and nothing is written.
set session sql_select_limit = 18446744073709551615;
set session transaction isolation level repeatable read; start transaction read only
