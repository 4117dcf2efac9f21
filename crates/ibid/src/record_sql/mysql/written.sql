-- Returns the instant of the write that made the version ?2, ?3. No row: another version is stored, or none. This tells who
-- won; the number of affected rows does not, because its meaning depends on the client.
select r.written_at from ibid_record r where r.id = ?1 and r.count = ?2 and r.nonce = ?3
