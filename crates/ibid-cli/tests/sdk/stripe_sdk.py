"""stripe: the key is in `Idempotency-Key`, made by the SDK for each call."""

import sys

import stripe
from calls import serve

client = stripe.StripeClient(
    "sk_test_ibid",
    base_addresses={"api": sys.argv[1]},
    max_network_retries=2,
)


def call(number):
    params = {"amount": 500 + number, "currency": "eur"}
    return client.v1.payment_intents.create(params=params).id


serve(call)
