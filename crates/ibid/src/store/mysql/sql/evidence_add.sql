-- Stores the evidence of an event unless it is there, and returns what is there. Its nonce tells whose it is.
insert into ibid_evidence (source, event, record, owner, as_of, purge_at, open, found, nonce)
values (?1, ?2, ?3, ?4, timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) - least(?5, timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))), timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + ?6, 1, ?7, ?8)
on duplicate key update seq = seq;
select e.seq, e.source, e.event, e.record, e.owner, e.as_of, e.open, e.found, e.nonce
from ibid_evidence e
where e.source = ?1 and e.event = ?2
