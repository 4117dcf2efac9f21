-- Payload and result of a record's effects are as personal as the response, so they go with it. All of these effects have ended.
update $rows straight_join ibid_effect_call c force index (ibid_effect_call_once) on c.record = w.id
set c.payload = null, c.result = null
where c.payload is not null or c.result is not null
