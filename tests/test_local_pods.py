"""How local pods are known, where the Node says it: nothing is programmed before, and what it says later counts."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

from structlog.testing import capture_logs

from proxy.agent import Agent
from proxy.events import Delete, Inbox, Put, Replace
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR, convert
from proxy.settings import Settings
from proxy.state import State
from rules.fake import FakeKernel
from rules.layout import LAYOUTS, Options
from rules.objects import Family

LISTS = [Replace(SERVICE, []), Replace(ENDPOINT_SLICE, []), Replace(NODE, []), Replace(SERVICE_CIDR, [])]


def node(*cidrs: str) -> Put:
    return Put(convert(NODE, {"metadata": {"name": "node0"}, "spec": {"podCIDRs": list(cidrs)}}))


def marking(kernel: FakeKernel, family: Family) -> Any:
    """The chains that ask whether a packet comes from a local pod."""
    state = kernel.dump(LAYOUTS[family].table)
    assert state is not None
    names = ("cluster-ip-port", "cluster-ip", "to-local", "nodeport-to-local")
    return {name: state.chains[name].rules for name in names}


def expected(family: Family, *cidrs: str) -> Any:
    options = Options(local_networks=tuple(map(ip_network, cidrs)))
    return {chain.name: [rule.expressions for rule in rules] for chain, rules in LAYOUTS[family].local_rules(options)}


def test_node_cidr_waits_for_the_nodes_pod_cidrs_and_follows_them() -> None:
    kernel = FakeKernel()
    agent = Agent(State("node0"), kernel, Inbox(), Settings(node_cidr=True))
    with capture_logs() as logs:
        agent.handle(LISTS)
        agent.handle([node()])
        agent.handle([])
    assert [log["event"] for log in logs] == ["waiting_for_pod_cidrs"]
    assert kernel.transactions == 0
    agent.handle([node("10.244.7.0/24", "fd44:7::/64")])
    assert kernel.transactions == 1
    for family in Family:
        assert marking(kernel, family) == expected(family, "10.244.7.0/24", "fd44:7::/64")
    agent.handle([node("10.244.8.0/24", "fd44:7::/64")])
    for family in Family:
        assert marking(kernel, family) == expected(family, "10.244.8.0/24", "fd44:7::/64")
    before = kernel.transactions
    agent.handle([Delete(NODE, "", "node0")])  # what was known of the pods stays true
    assert kernel.transactions == before


def test_other_modes_do_not_wait() -> None:
    kernel = FakeKernel()
    Agent(State("node0"), kernel, Inbox(), Settings()).handle(LISTS)
    assert kernel.transactions == 1
