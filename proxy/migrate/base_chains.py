"""The base chains that packets pass here: nftables', anybody's, and those of iptables' legacy variant. Names and policies;
nobody's rules are listed.

linux/netfilter/nf_tables.h. Needs CAP_NET_ADMIN.
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Collection
from typing import Final

from proxy.detect.iptables_legacy import IPV4, IPV6
from proxy.detect.kernel_support import Support, could_be_there
from proxy.detect.netlink import Netlink
from proxy.detect.unreadable import PERMISSION
from proxy.migrate import legacy_chains
from proxy.migrate.facts import BaseChain, Hook
from proxy.unread import Unread
from rules.netlink import GETCHAIN, NETLINK_NETFILTER, SUBSYSTEM, attributes, read_text

CHAIN_TABLE, CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY, CHAIN_USE, CHAIN_TYPE = 1, 3, 4, 5, 6, 7
HOOK_NUMBER, HOOK_PRIORITY = 1, 2
FAMILIES: Final = {1: "inet", 2: "ip", 5: "netdev", 7: "bridge", 10: "ip6"}
HOOKS: Final[tuple[Hook, ...]] = ("prerouting", "input", "forward", "output", "postrouting", "ingress")
DEVICE_HOOKS: Final[tuple[Hook, ...]] = ("ingress", "egress")
PROGRAMS: Final = (
    ("iptables", r"filter|nat|mangle|raw|security|broute"),
    ("kube-proxy", r"kube-proxy"),
    ("kube-proxy-nft", r"kube-proxy-nft(-standby)?"),
    ("firewalld", r"firewalld(_.*)?"),
    ("calico", r"calico(-.*)?"),
    ("flannel", r"flannel-.*"),
    ("kindnet", r"kindnet.*|kube-network-policies"),
    ("cni", r"cni_.*"),
    ("docker", r"docker.*"),
    ("podman", r"netavark.*"),
    ("libvirt", r"libvirt_.*"),
    ("tailscale", r"ts-.*|tailscale.*"),
    ("lxd", r"lxd|incus"),
)
"""Program -> the names of its tables."""

_BE32 = struct.Struct(">I")
_PRIORITY = struct.Struct(">i")
_ATTRIBUTE = struct.Struct("=HH")
_NFGENMSG = struct.Struct(">BBH")
_NOT_THERE: Final = (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EINVAL, errno.EOPNOTSUPP)


def read(support: Support, known: Collection[str] = ()) -> tuple[tuple[BaseChain, ...], tuple[Unread, ...]]:
    """All base chains, and what could not be read of them. known: families whose chains of iptables-legacy are known."""
    found: list[BaseChain] = []
    unread: list[Unread] = []
    if could_be_there(support("nf_tables", "CONFIG_NF_TABLES")):
        try:
            found += nftables()
        except OSError as error:
            if error.errno not in _NOT_THERE:
                unread.append(_unread("base chains of nftables", error))
        except ValueError as error:
            unread.append(_unread("base chains of nftables", error))
    for variant in (IPV4, IPV6):
        if variant.part in known:
            continue
        try:
            found += legacy_chains.read(variant)
        except FileNotFoundError:  # this kernel has none, or none is loaded
            continue
        except (OSError, ValueError) as error:
            unread.append(_unread(f"base chains of iptables-legacy, {variant.part}", error))
    return tuple(found), tuple(unread)


def nftables() -> list[BaseChain]:
    """Of all families. Raises OSError, ValueError."""
    with Netlink(NETLINK_NETFILTER) as netlink:
        chains = netlink.dump(SUBSYSTEM << 8 | GETCHAIN, _NFGENMSG.pack(0, 0, 0), read_chain)
    return [chain for chain in chains if chain]


def read_chain(body: memoryview) -> BaseChain | None:
    """None: it is at no hook. Raises ValueError, LookupError, struct.error."""
    family = FAMILIES.get(body[0])
    if not _has_hook(body):  # as a hundred thousand of kube-proxy's
        return None
    parts = dict(attributes(body[_NFGENMSG.size :]))
    if family is None or CHAIN_HOOK not in parts:
        return None
    hook = dict(attributes(parts[CHAIN_HOOK]))
    (number,) = _BE32.unpack(hook[HOOK_NUMBER])
    (priority,) = _PRIORITY.unpack(hook[HOOK_PRIORITY])
    names = DEVICE_HOOKS if family == "netdev" else HOOKS
    if number >= len(names):
        return None
    # To each rule in it the chain is of use; nothing jumps to a base chain.
    rules = _BE32.unpack(parts[CHAIN_USE])[0] if CHAIN_USE in parts else -1
    dropping = CHAIN_POLICY in parts and _BE32.unpack(parts[CHAIN_POLICY])[0] == 0
    table = read_text(parts[CHAIN_TABLE])
    return BaseChain(
        family,
        table,
        read_text(parts[CHAIN_NAME]),
        read_text(parts.get(CHAIN_TYPE, memoryview(b"filter"))),
        names[number],
        priority,
        "drop" if dropping else "accept",
        rules,
        program_of(table, family),
    )


def _has_hook(body: memoryview) -> bool:
    at = _NFGENMSG.size
    while at + 4 <= len(body):
        length, number = _ATTRIBUTE.unpack_from(body, at)
        if number & 0x3FFF == CHAIN_HOOK:
            return True
        if length < 4:
            raise ValueError(f"an attribute of {length} bytes")
        at += (length + 3) & ~3
    return False


def program_of(table: str, family: str = "") -> str:
    """Whose table this is, by its name; "" if that is not known. iptables has none of the family inet: `inet filter` is what
    many an nftables.conf calls the node's own firewall."""
    found = next((program for program, names in PROGRAMS if re.fullmatch(names, table)), "")
    return "" if found == "iptables" and family == "inet" else found


def _unread(what: str, error: OSError | ValueError) -> Unread:
    if isinstance(error, ValueError):
        return Unread(what, f"what the kernel says cannot be understood: {error}", "report this bug")
    if error.errno in (errno.EPERM, errno.EACCES):
        return Unread(what, "no permission", PERMISSION)
    return Unread(what, error.strerror or str(error), "try again")
