-- payment_settle.sql: how a payment ended. It ends once: no row changed means that it had ended before.
update payment
   set status = $2, charge_id = $3
 where id = $1 and status = 'pending'
