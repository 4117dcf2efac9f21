-- These can't be used any more; their events stay known.
update ibid_evidence set open = false where seq = any ($1)
