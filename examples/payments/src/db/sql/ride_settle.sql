-- ride_settle.sql: how the charge of a ride ended. It ends once: no row changed means that it had ended before.
update ride
   set status = $2, charge_id = $3
 where id = $1 and status = 'pending'
