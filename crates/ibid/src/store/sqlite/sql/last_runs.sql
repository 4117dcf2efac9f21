-- The ?1 records that were begun last, for figures about how long runs take.
select policy, state, flags, ran_at, completed_at, method, path, note
from ibid_record where flags & 128 = 0 order by row desc limit ?1
