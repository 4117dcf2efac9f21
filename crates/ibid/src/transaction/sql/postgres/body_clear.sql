-- Drop all that is kept beside a record.
delete from ibid_body where id = $1
