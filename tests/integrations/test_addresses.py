"""Which texts of connections and headers are the address of a client."""

from __future__ import annotations

import pytest

from limits_app.integrations.addresses import parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("198.51.100.7", "198.51.100.7"),
        (" 198.51.100.7\t", "198.51.100.7"),
        ("198.51.100.7:0", "198.51.100.7"),
        ("198.51.100.7:65535", "198.51.100.7"),
        ("[198.51.100.7]", "198.51.100.7"),
        ("2001:DB8::00a1", "2001:db8::a1"),
        ("[2001:db8::a1]", "2001:db8::a1"),
        ("[2001:db8::a1]:8443", "2001:db8::a1"),
        ("fe80::7%en5", "fe80::7%en5"),
        ("[fe80::7%en5]:80", "fe80::7%en5"),
        ("[::ffff:198.51.100.7]:80", "198.51.100.7"),
        ("64:ff9b::198.51.100.7", "198.51.100.7"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert str(parse_address(text)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "unix:/run/site.socket",
        "198.51.100",
        "198.51.100.7/32",
        "198.51.100.007",
        "198.51.100.7, 203.0.113.9",
        "198.51.100.7:",
        "198.51.100.7:http",
        "198.51.100.7:65536",
        "198.51.100.7:\N{SUPERSCRIPT TWO}",
        "198.51.100.7:" + "0" * 5_000,
        "[2001:db8::a1",
        "[2001:db8::a1]443",
        "[2001:db8::a1]:-1",
        "2001:db8::a1]:443",
        "fe80::7%" + "e" * 300,
        "0.0.0.0",  # noqa: S104 - no address to listen on
        "0.1.2.3",
        "239.255.255.250",
        "250.0.0.1",
        "255.255.255.255",
        "::",
        "::ffff:0.0.0.0",
        "64:ff9b::255.255.255.255",
        "ff02::fb",
    ],
)
def test_texts_that_are_not_the_address_of_a_client(text: str) -> None:
    assert parse_address(text) is None
