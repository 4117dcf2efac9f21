-- Evidence is used up in the transaction of the change that it led to.
update ibid_evidence set open = 0, purge_at = ?1 + ?4 where source = ?2 and event = ?3
