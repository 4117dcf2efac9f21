-- Returns the server's time.
select (extract(epoch from statement_timestamp()) * 1000000)::int8
