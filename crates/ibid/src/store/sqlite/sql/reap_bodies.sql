-- Bodies apart of a row that goes or is stripped.
delete from ibid_body where slot between ?1 * 131072 and ?1 * 131072 + 131071
