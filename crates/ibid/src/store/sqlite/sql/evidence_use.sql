-- Mark evidence as used, in the transaction of the change that it led to.
update ibid_evidence set open = 0, purge_at = ?3 where source = ?1 and event = ?2
