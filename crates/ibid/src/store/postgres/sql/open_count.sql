-- Opens a transaction around counts of whole tables. A million rows take some tenths of a second; what takes longer than
-- this is a burden to the server.
begin read only;
set local statement_timeout = '5s'
