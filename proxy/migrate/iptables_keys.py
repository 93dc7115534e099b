"""Which address, protocol and port a rule of kube-proxy's in iptables is about. Pure."""

from __future__ import annotations

import re
import socket
from typing import Final

from proxy.migrate.iptables_save import Option, Rule
from rules.elements import service_key
from rules.objects import Family

PROTOCOLS: Final = {"tcp": 6, "udp": 17, "sctp": 132}
_NAME: Final = re.compile(
    r"(\S+?):?(?: (cluster IP|external IP|loadbalancer IP|has no endpoints|has no local endpoints))?"
)


def key_of(rule: Rule, family: Family) -> bytes:
    """Of a rule for one address, protocol and port; b"" of another one."""
    protocol, port = PROTOCOLS.get(value_of(rule, "-p"), 0), value_of(rule, "--dport")
    address = one_address(value_of(rule, "-d"), family)
    if not protocol or not address or not port.isdecimal() or not 0 < int(port) < 65536:
        return b""
    return service_key(address, protocol, int(port))


def one_address(text: str, family: Family) -> bytes:
    """Packed; b"" of anything else than one address of this family."""
    host, _, length = text.partition("/")
    kind = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    try:
        return socket.inet_pton(kind, host) if length in ("", str(8 * family.address_size)) else b""
    except OSError:
        return b""


def value_of(rule: Rule, name: str) -> str:
    """Of an option that is there and not negated."""
    option = rule.option(name)
    return option.value if option and not option.negated else ""


def is_of_key(option: Option) -> bool:
    """Whether it only says which address, protocol and port; or nothing."""
    if option.name in ("-d", "-p", "--dport"):
        return not option.negated
    return option.name == "--comment" or (option.name == "" and option.module in PROTOCOLS)


def is_plain(rule: Rule) -> bool:
    """Whether nothing but its address, protocol and port decides."""
    return all(
        is_of_key(option) or (option.name == "--dst-type" and option.value == "LOCAL" and not option.negated)
        for option in rule.matches
    )


def name_of(rule: Rule) -> tuple[str, str]:
    """ "namespace/name:port", and what the comment says of it."""
    found = _NAME.fullmatch(rule.comment)
    return (found[1], found[2] or "") if found and "/" in found[1] else ("", "")
