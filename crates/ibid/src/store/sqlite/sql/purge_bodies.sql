-- All that is kept beside a row.
delete from body where slot between ?1 * 131072 and ?1 * 131072 + 131071
