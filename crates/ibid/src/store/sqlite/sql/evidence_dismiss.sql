-- Mark evidence that cannot be used any more; its event stays known.
update ibid_evidence set open = 0 where source = ?1 and event = ?2
