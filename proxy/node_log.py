"""What the log says of this node: what is known of it, and, once, what is amiss."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence

import structlog

from proxy.config import Config
from proxy.node_families import NAMES, Concern, concerns
from proxy.nodes import NodeInfo, node_ips
from rules.objects import Family

LOG = structlog.get_logger()


class NodeLog:
    """name: this node's. bound: see Settings. families: those that this node has."""

    def __init__(self, name: str, config: Config, bound: tuple[bytes, ...], families: Collection[Family]) -> None:
        self._name, self._config, self._bound, self._families = name, config, bound, families
        self._node: NodeInfo | None = None
        self._told: set[str | Concern] = set()

    def __call__(self, node: NodeInfo | None) -> None:
        """What is known now; None: the Nodes have not been listed yet. Cheap when nothing changed."""
        if node is None or node == self._node:
            return
        old, self._node = self._node, node
        if not node.exists:
            self._gone(was_there=old is not None)
            return
        if old and node.eligible and not old.eligible:
            LOG.info("node_eligible", node=self._name, then="/healthz answers 200")
        elif not node.eligible and (old is None or old.eligible or not old.exists):
            cause = "the Node is being deleted, or the cluster autoscaler is about to remove it"
            LOG.info("node_not_eligible", node=self._name, cause=cause, then="/healthz answers 503")
        ips = node_ips(node, self._bound)
        if old is None or _shown(old) != _shown(node):
            self._known(node, ips)
        if not ips and self._is_news("no IP"):
            LOG.warning(
                "node_without_ip",
                node=self._name,
                cause="the Node has neither an InternalIP nor an ExternalIP (yet)",
                then=self._without_ip(),
                remedy="see that the kubelet or the cloud provider sets the Node's addresses, or set bindAddress",
            )
        for concern in concerns(self._config, self._families, ips, node.pod_cidrs):
            if self._is_news(concern):
                LOG.warning("configuration_doubtful", field=concern.field, cause=concern.cause, remedy=concern.remedy)

    def _gone(self, was_there: bool) -> None:
        then = "/healthz answers 503; hints for a zone do not count"
        if self._is_primary():
            then += "; there are no NodePorts"
        if was_there:
            LOG.warning("node_deleted", node=self._name, then=then, remedy="none needed, if this node is to go")
        elif self._is_news("not found"):
            LOG.warning(
                "node_not_found",
                node=self._name,
                cause="there is no Node of this name (yet)",
                then=then,
                remedy="if this node is registered under another name, set hostnameOverride to that",
            )

    def _known(self, node: NodeInfo, ips: Sequence[bytes]) -> None:
        LOG.info(
            "node_known",
            node=self._name,
            ips=[str(ipaddress.ip_address(address)) for address in ips],
            primary=NAMES[Family.of(ips[0])] if ips else "",
            pod_cidrs=[str(network) for network in node.pod_cidrs],
            zone=node.zone,
        )

    def _without_ip(self) -> str:
        """What becomes of NodePorts when the Node tells no IP."""
        return f"NodePorts answer {'on all addresses of the node' if self._is_primary() else 'where the configuration says'}"

    def _is_primary(self) -> bool:
        """Whether NodePorts are where the Node says."""
        chosen = self._config.node_port_addresses
        return chosen.primary and not chosen.cidrs and not self._bound

    def _is_news(self, what: str | Concern) -> bool:
        news = what not in self._told
        self._told.add(what)
        return news


def _shown(node: NodeInfo) -> object:
    return node.exists, node.addresses, node.pod_cidrs, node.zone
