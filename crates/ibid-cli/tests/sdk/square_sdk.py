"""squareup: the key is the member `idempotency_key` of the JSON body, given by the caller."""

import sys
import uuid

from calls import serve
from square import Square

client = Square(token="token_ibid", base_url=sys.argv[1])


def call(number):
    response = client.payments.create(
        idempotency_key=str(uuid.uuid4()),
        source_id="cnon:card-nonce-ok",
        amount_money={"amount": 500 + number, "currency": "EUR"},
        request_options={"max_retries": 1},
    )
    return response.payment.id


serve(call)
