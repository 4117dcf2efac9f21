-- Store evidence unless its event is known: the first delivery counts.
insert into ibid_evidence (source, event, record, owner, as_of, purge_at, open, found)
values (?1, ?2, ?3, ?4, ?5, ?6, 1, ?7)
on conflict (source, event) do nothing
