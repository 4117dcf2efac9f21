-- Which session of the server this statement met.
select pg_backend_pid()
