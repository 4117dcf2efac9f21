-- Delete evidence whose time is over, oldest first.
delete from ibid_evidence
where seq in (select seq from ibid_evidence where purge_at <= ?1 order by purge_at limit ?2)
