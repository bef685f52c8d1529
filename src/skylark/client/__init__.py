"""The client layer: where the name servers are."""

from .addresses import (
    Address,
    AddressBook,
    AddressList,
    AddressSource,
    HttpFetch,
    address_url,
    find_addresses,
    parse_addresses,
)

__all__ = [
    "Address",
    "AddressBook",
    "AddressList",
    "AddressSource",
    "HttpFetch",
    "address_url",
    "find_addresses",
    "parse_addresses",
]
