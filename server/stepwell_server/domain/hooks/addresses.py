"""Addresses: which of them are out on the public internet, where every machine could reach them as well."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

IpAddress: TypeAlias = IPv4Address | IPv6Address

# From IANA's registries of special-purpose addresses. Python's `is_global` is not used: what it says of mapped and of
# some reserved addresses changed between releases.
_SPECIAL_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local: the metadata services of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
_SPECIAL_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, whose relays are gone: no receiver is there
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")


def parse_address(text: str) -> IpAddress | None:
    """The address that the text is in its usual notation; None if it is none."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def is_public(address: IpAddress) -> bool:
    """True for unicast addresses of the public internet; an IPv4 address within an IPv6 address is judged as itself."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_V4)
    inner = _embedded(address)
    if inner is not None:
        return is_public(inner)
    return address in _GLOBAL_V6 and not any(address in network for network in _SPECIAL_V6)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """Whom a packet to this address really reaches, where that is an IPv4 host: mapped, or through a NAT64 gateway."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped
