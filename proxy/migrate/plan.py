"""The switch, step by step, and the way back: docs/install.md for this cluster. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proxy.migrate.report import Finding, Plan, Severity, Step

ANY: Final = "any"
_NAMESPACE: Final = "kubectl --namespace kube-system"
_PATCH: Final = (
    f"{_NAMESPACE} patch daemonset kube-proxy --patch-file deploy/kubeadm-node-by-node/kube-proxy-patch.yaml"
)
_UNPATCH: Final = (
    f"{_NAMESPACE} patch daemonset kube-proxy --type json"
    ' --patch \'[{"op": "remove", "path": "/spec/template/spec/affinity"}]\''
)
_PODS: Final = f"{_NAMESPACE} get pods --selector k8s-app=kube-proxy-nft --field-selector spec.nodeName=NODE --watch"
_OLD_PODS: Final = f"{_NAMESPACE} get pods --selector k8s-app=kube-proxy --field-selector spec.nodeName=NODE --watch"
_IMAGE: Final = "--image=REGISTRY/kube-proxy-nft:VERSION"
_OVERLAY: Final = (
    "kubectl apply -k my-cluster    # an overlay of deploy/base, limited to nodes with the label: docs/install.md"
)
_K3S_OFF: Final = (
    "echo 'disable-kube-proxy: true' >> /etc/rancher/k3s/config.yaml    # RKE2: /etc/rancher/rke2/config.yaml"
)
_K3S_AGAIN: Final = "systemctl restart k3s    # k3s-agent, rke2-server, rke2-agent: what runs on the node"

_FIRST: Final[dict[Severity, str]] = {"blocker": "Take out of the way", "change": "Do, or decide"}

DRAINS: Final = frozenset({"ipvs"})
"""Modes whose connections end with their rules."""


def plan(platform: str, mode: str, findings: Sequence[Finding]) -> Plan:
    """platform: as facts.NodeFacts has it. mode: of the proxy that runs, "" if not known."""
    where = "k3s" if platform == "rke2" else platform
    drain = mode in DRAINS or mode == ""
    return Plan(where, _before(findings), _node(drain), _after(), _back())


def _before(findings: Sequence[Finding]) -> tuple[Step, ...]:
    todo = [Step(f"{_FIRST[one.severity]}: {one.title}", one.remedy) for one in findings if one.severity in _FIRST]
    return (
        *todo,
        Step(
            "Keep this report's facts",
            "To compare with after the switch, and for whoever has to look when something differs.",
            {ANY: ("kube-proxy-nft migrate collect NODE.bundle    # on each node",)},
        ),
        Step(
            "Keep kube-proxy off the nodes that are to be switched",
            "A label says who serves a node. Nothing changes yet: kube-proxy's pods are replaced once, its rules stay"
            " meanwhile. (k3s and RKE2 have kube-proxy in their own process: it is switched off for all servers, and a node"
            " follows when it is started again.)",
            {
                "kubeadm": (
                    _PATCH,
                    f"{_NAMESPACE} rollout status daemonset kube-proxy",
                ),
                "k3s": (_K3S_OFF,),
                "daemonset": (
                    f"{_PATCH}    # with your DaemonSet's namespace and name",
                    f"{_NAMESPACE} rollout status daemonset kube-proxy",
                ),
            },
        ),
        Step(
            "Install kube-proxy-nft",
            "No pod is started yet: none of the nodes has the label.",
            {
                "kubeadm": ("kubectl apply -k deploy/kubeadm-node-by-node    # its image is set in deploy/kubeadm",),
                "k3s": (_OVERLAY,),
                "daemonset": (_OVERLAY,),
            },
        ),
    )


def _node(drain: bool) -> tuple[Step, ...]:
    steps = []
    if drain:
        steps.append(
            Step(
                "Drain the node",
                "Connections through IPVS end when its virtual servers go. Without IPVS no step of this cuts a connection, and"
                " this one is not needed.",
                {ANY: ("kubectl drain NODE --ignore-daemonsets --delete-emptydir-data",)},
            )
        )
    steps += [
        Step(
            "Switch the node",
            "kube-proxy ends and its rules stay; kube-proxy-nft starts, and new connections take its rules as soon as they"
            " are there. Until it is Ready, changes of Services have to wait, and nothing else. If it does not become Ready,"
            " go back: kube-proxy's own rules are still there.",
            {
                "kubeadm": ("kubectl label node NODE kube-proxy-nft/enabled=true", _PODS),
                "k3s": (_K3S_AGAIN, "kubectl label node NODE kube-proxy-nft/enabled=true", _PODS),
                "daemonset": ("kubectl label node NODE kube-proxy-nft/enabled=true", _PODS),
            },
        ),
        Step(
            "Remove kube-proxy's rules, at once",
            "Nobody brings them up to date any more, and those that refuse or drop packets stand before ours. With --take-over"
            " among its arguments (`run --take-over`) the agent does this itself, once its own rules are in place; then the"
            " first command shows that nothing is left.",
            {
                ANY: (
                    f"kubectl debug node/NODE --profile=sysadmin {_IMAGE} -- kube-proxy-nft cleanup --kube-proxy --dry-run",
                    f"kubectl debug node/NODE --profile=sysadmin {_IMAGE} -- kube-proxy-nft cleanup --kube-proxy",
                )
            },
        ),
        Step(
            "Verify",
            "The agent is healthy, its tables are there and no others, and Services answer from the node and from a pod.",
            {
                ANY: (
                    f"{_NAMESPACE} logs --selector k8s-app=kube-proxy-nft --tail 20    # programmed",
                    "curl --silent localhost:10256/healthz",
                    "nft list tables    # ip kube-proxy-nft, ip6 kube-proxy-nft, and no kube-proxy",
                    "iptables-save | grep --count KUBE-SVC    # 0",
                    "ip link show kube-ipvs0    # does not exist",
                    "kube-proxy-nft migrate --dry-run    # every Service the same",
                )
            },
        ),
    ]
    if drain:
        steps.append(Step("Let pods come back", "", {ANY: ("kubectl uncordon NODE",)}))
    return tuple(steps)


def _after() -> tuple[Step, ...]:
    return (
        Step(
            "Make it the default",
            "When all nodes are switched: new nodes are kube-proxy-nft's without a label.",
            {
                "kubeadm": (
                    "kubectl apply -k deploy/kubeadm",
                    f"{_NAMESPACE} patch daemonset kube-proxy --patch-file deploy/kubeadm/kube-proxy-patch.yaml",
                ),
                "k3s": ("kubectl apply -k my-cluster    # without the label's nodeSelector",),
                "daemonset": ("kubectl apply -k my-cluster    # without the label's nodeSelector",),
            },
        ),
        Step(
            "Keep upgrades from bringing kube-proxy back",
            "kubeadm upgrade writes kube-proxy's DaemonSet anew. (kubeadm 1.32.1 and newer: proxy.disabled: true in"
            " ClusterConfiguration does it for good.)",
            {
                "kubeadm": (
                    "kubeadm upgrade apply VERSION --skip-phases=addon/kube-proxy    # on the first control plane node",
                    "kubeadm upgrade node --skip-phases=addon/kube-proxy    # on the others",
                ),
                "k3s": ("# nothing: disable-kube-proxy stays in config.yaml; set it on new servers, too",),
                "daemonset": ("# keep the patch where the DaemonSet's manifest is kept",),
            },
        ),
    )


def _back() -> tuple[Step, ...]:
    return (
        Step(
            "Give the node back to kube-proxy",
            "Our rules stay until kube-proxy has programmed its own: no connection fails meanwhile. Established ones live on.",
            {
                "kubeadm": ("kubectl label node NODE kube-proxy-nft/enabled-", _OLD_PODS),
                "k3s": (
                    "kubectl label node NODE kube-proxy-nft/enabled-",
                    "sed --in-place /disable-kube-proxy/d /etc/rancher/k3s/config.yaml    # on the servers; RKE2: rke2",
                    _K3S_AGAIN,
                ),
                "daemonset": ("kubectl label node NODE kube-proxy-nft/enabled-", _OLD_PODS),
            },
        ),
        Step(
            "Remove our tables, at once",
            "Once kube-proxy is ready and its log has no errors: nobody brings ours up to date any more.",
            {ANY: (f"kubectl debug node/NODE --profile=netadmin {_IMAGE} -- kube-proxy-nft cleanup",)},
        ),
        Step(
            "The whole cluster",
            "When no node is to stay with kube-proxy-nft. If proxy.disabled was set, take it out of kubeadm-config.",
            {
                "kubeadm": (
                    "kubectl delete -k deploy/kubeadm-node-by-node",
                    _UNPATCH,
                ),
                "k3s": ("kubectl delete -k my-cluster",),
                "daemonset": ("kubectl delete -k my-cluster", "# take the patch off kube-proxy's DaemonSet"),
            },
        ),
    )
