"""Addresses: which of them are public."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepwell_server.domain.hooks.addresses import is_public, parse_address

# What IANA reserves and some releases of Python call global.
UNKNOWN_TO_PYTHON = [IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24")]

v4 = st.ip_addresses(v=4)
v6 = st.ip_addresses(v=6)


def embedded_in(network: str, address: IPv4Address) -> IPv6Address:
    prefix = IPv6Network(network)
    return IPv6Address(int(prefix.network_address) | int(address) << 128 - 32 - prefix.prefixlen)


PUBLIC = """
    8.8.8.8 93.184.216.34 100.63.255.255 100.128.0.0 172.15.0.1 172.32.0.1 223.255.255.255
    2606:2800:220:1::1 2001:200::1 2400:cb00::1 ::ffff:8.8.8.8 64:ff9b::808:808
"""

SPECIAL = """
    0.0.0.0 0.1.2.3 10.1.2.3 100.64.0.1 127.0.0.1 127.255.255.254 169.254.169.254 172.16.0.1 172.31.255.255
    192.0.0.8 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.51.100.1 203.0.113.1
    224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
    :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b:1::808:808
    100::1 2001::1 2001:2::1 2001:db8::1 2002:7f00:1:: 2002:a00:1::1 3fff::1 5f00::1
    fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 4000::1
"""


@pytest.mark.parametrize("address", PUBLIC.split())
def test_hosts_of_the_internet_are_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", SPECIAL.split())
def test_everything_with_a_purpose_of_its_own_is_not(address: str) -> None:
    assert not is_public(ip_address(address))


@given(v4)
@example(IPv4Address("192.0.0.9"))
def test_python_agrees_about_ipv4_but_for_what_it_does_not_know(address: IPv4Address) -> None:
    if any(address in network for network in UNKNOWN_TO_PYTHON):
        assert not is_public(address)
    else:
        assert is_public(address) == (address.is_global and not address.is_multicast)


@given(v6)
def test_no_ipv6_address_is_public_that_python_gives_a_purpose(address: IPv6Address) -> None:
    if is_public(address) and address.ipv4_mapped is None and address not in IPv6Network("64:ff9b::/96"):
        assert address.is_global
        assert not (address.is_multicast or address.is_reserved or address.is_site_local)


@given(v4)
def test_an_ipv4_address_is_not_hidden_by_an_ipv6_address_around_it(address: IPv4Address) -> None:
    assert is_public(embedded_in("::ffff:0:0/96", address)) == is_public(address)
    assert is_public(embedded_in("64:ff9b::/96", address)) == is_public(address)


@given(v4)
def test_what_only_a_relay_could_reach_is_not_public(address: IPv4Address) -> None:
    assert not is_public(embedded_in("2002::/16", address))
    assert not is_public(IPv6Address(int(IPv6Address("2001::")) | (int(address) ^ 0xFFFF_FFFF)))


@pytest.mark.parametrize("text", ["", "localhost", "127.1", "0x7f000001", "2130706433", "127.0.0.01", "[::1]"])
def test_only_the_usual_notation_is_an_address(text: str) -> None:
    assert parse_address(text) is None
