-- All that is kept beside a row.
delete from ibid_body where slot between ?1 * 131072 and ?1 * 131072 + 131071
