-- Drop all that is kept beside one generation of a record.
delete from ibid_body where born_at = $1 and birth = $2
