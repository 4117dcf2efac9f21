-- Every call in the outbox, by the key that the provider was given. The state is a code; when it was done, in
-- microseconds since the epoch.
select downstream_key as key, provider_id, kind, name, state, tenant, done_at from ibid_effect order by seq
