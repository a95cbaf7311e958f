"""Which kind of network an address belongs to, and where a web server may redirect a request.

A dataset names a public server; the server must not be able to have this machine ask its own services, or those of its network, and take
the answer for data.  So a redirect leads to the same kind of address as the one that was asked, and never from https to http.
"""

import ipaddress
from typing import Literal
from urllib.parse import SplitResult, urljoin, urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Kind = Literal["loopback", "link-local", "private", "public"]

_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # an IPv4 address in the last 32 bits
_WEB = ("http", "https")


def address_kind(text: str) -> Kind:
    """Return the kind of network of an IP address; raise ValueError if it is none."""
    address = ipaddress.ip_address(text.partition("%")[0])  # without the zone of IPv6
    embedded = _embedded(address)
    if embedded is not None:
        inner = address_kind(str(embedded))
        if inner != "public":
            return inner
    if address.is_loopback or address.is_unspecified:  # 0.0.0.0 is answered by this machine, too
        return "loopback"
    if address.is_link_local:  # also the metadata services of clouds, 169.254.169.254
        return "link-local"
    if address.is_global and not address.is_multicast:
        return "public"
    return "private"


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def name_kind(host: str) -> Kind | None:
    """Return the kind of a host that needs no lookup: an IP address or localhost; else None."""
    try:
        return address_kind(host)
    except ValueError:
        pass
    name = host.rstrip(".").lower()
    return "loopback" if name == "localhost" or name.endswith(".localhost") else None


def redirected(url: str, location: str) -> SplitResult:
    """Return the address that a redirect leads to; raise ValueError, which says why, if it may not be followed."""
    target = urlsplit(urljoin(url, location))
    try:
        port = target.port
    except ValueError as error:
        raise ValueError(f"to an address with a port that is not a number ({error})") from error
    if target.scheme not in _WEB or not target.hostname or port == 0:
        raise ValueError(f"to {target.scheme or 'nothing'}://, which is not a web server")
    if urlsplit(url).scheme == "https" and target.scheme == "http":
        raise ValueError("from https to http, where anybody on the way can change the answer")
    if target.username is not None or target.password is not None:
        raise ValueError("to an address with a user or password in it")
    return target


def check_kinds(asked: frozenset[Kind], target: frozenset[Kind], host: str) -> None:
    """Raise ValueError if the host of a redirect has an address of a kind that the host that was asked does not have."""
    others = sorted(target - asked)
    if others:
        raise ValueError(
            f"to {host}, which has a {others[0]} address, and the server that was asked has a {' or '.join(sorted(asked))} one"
        )
