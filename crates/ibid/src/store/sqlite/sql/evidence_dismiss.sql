-- It can't be used any more; its event stays known.
update ibid_evidence set open = 0 where seq = ?1
