-- Returns the number that call_add.sql has drawn; 0: it added nothing.
select last_insert_id()
