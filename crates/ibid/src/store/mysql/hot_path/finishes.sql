-- Finishes the records that are still at their version. The select locks them, so each of its rows meets itself as a duplicate
-- key, and no row is inserted; a row that another transaction has locked is passed over. An update that joins the rows does the
-- same and takes twice as long, as does one update per record. Tenant, operation, key, birth and instants of birth stay.
insert into ibid_record (
  id, birth, created_at, tenant, method, path, `key`,
  count, nonce, owner, attempt, state, flags, policy, point,
  written_at, completed_at, due_at, expires_at, purge_at, reap_at, fingerprint, note, status, `lines`, body, sealed_by
)
$with
select r.id, r.birth, r.created_at, '', '', '', '',
       w.count, w.nonce, w.owner, w.attempt, w.state, w.flags, w.policy, w.point,
       @ibid_now, @ibid_now, null, @ibid_now + w.expires, @ibid_now + w.purge,
       if(w.flags & 1, 9223372036854775807, @ibid_now + least(w.purge, coalesce(w.expires, w.purge))),
       w.fingerprint, w.note, w.status, w.lines, w.body, null
from w
straight_join ibid_record r force index (primary)
  on r.id = w.id and r.count = w.was_count and r.nonce = w.was_nonce
for update skip locked
on duplicate key update
  count = values(count), nonce = values(nonce), owner = values(owner), attempt = values(attempt),
  state = values(state), flags = values(flags), policy = values(policy), point = values(point),
  written_at = values(written_at), completed_at = values(completed_at), due_at = values(due_at),
  expires_at = values(expires_at), purge_at = values(purge_at), reap_at = values(reap_at),
  fingerprint = values(fingerprint), note = values(note), status = values(status), `lines` = values(`lines`),
  body = values(body), sealed_by = values(sealed_by)
