-- Begins the transaction of a read that may be slow. The server ends it after the time limit, or soon after the client has gone
-- (where it can see that). Lists walk an index in its order, because sorting a table takes longer than a page needs.
begin isolation level read committed read only;
set local statement_timeout = '8s';
set local lock_timeout = '1s';
set local enable_seqscan = off;
set local enable_bitmapscan = off;
set local enable_nestloop = on;
set local jit = off;
do $$ begin set local client_connection_check_interval = '1s'; exception when others then null; end $$
