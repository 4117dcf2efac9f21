-- Blanks letters.
update $rows straight_join ibid_effect_call c force index (primary) on c.seq = w.seq set c.payload = null, c.result = null
