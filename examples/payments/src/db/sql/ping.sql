-- ping.sql: does the database answer?
select 1
