-- Returns the nonces of a flight's records, on a server without `returning`, and the flight's instant for those that it has
-- written: an earlier send of the same change has the same nonce and another instant. Nothing is locked, so it does not matter
-- if a small table is read as a whole.
select nonce, if(written_at = @ibid_now, @ibid_now, null) from ibid_record force index (primary) where id in ($ids)
