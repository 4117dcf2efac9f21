"""azure-communication-rooms: `Repeatability-Request-ID` and `Repeatability-First-Sent`, made by the SDK for each call."""

import sys

from azure.communication.rooms import RoomsClient
from azure.core.credentials import AzureKeyCredential
from calls import serve

client = RoomsClient(sys.argv[1], AzureKeyCredential("aWJpZA=="), retry_backoff_factor=0)


def call(number):
    return client.create_room().id


serve(call)
