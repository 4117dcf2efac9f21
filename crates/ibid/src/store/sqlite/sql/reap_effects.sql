-- Effects after the place ?1 up to ?2 that ended by ?3 and whose record is gone.
delete from ibid_effect
where seq > ?1 and seq <= ?2 and open = 0 and coalesce(done_at, created_at) <= ?3
  and not exists (select 1 from ibid_record r where r.id = ibid_effect.record and r.birth = ibid_effect.birth)
