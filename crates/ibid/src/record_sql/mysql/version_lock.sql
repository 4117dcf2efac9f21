-- Locks a record at the version ?2, ?3. No row: another version is stored, or none. The update behind it then writes, whatever
-- the client counts; written.sql alone would not tell, because an earlier try of the same change has the same version.
select r.written_at from ibid_record r where r.id = ?1 and r.count = ?2 and r.nonce = ?3 for update
