"""Configuration files of the tools that install clusters, as evidence: each has its own spelling of the mode. Pure.

k0s, k0sctl, Talos, kops, kind, minikube, kubeadm, kubespray, RKE, Rancher; AKS and EKS for their kube-proxy. Sources: the
tools' references of these fields, and, for what they do where none is named, their sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from proxy.detect import k3s, versions
from proxy.detect.configured import off, set_aside
from proxy.detect.evidence import ConfiguredMode, Evidence, IpvsOption, Place, Unreadable, Version
from proxy.detect.proxy_config import KIND, at, gate, gates, ipvs_options, is_proxy_config, read_settings
from proxy.detect.tool_fields import (
    arguments,
    is_false,
    is_true,
    listed_gates,
    named_mode,
    prefixed_options,
    with_arguments,
)
from proxy.detect.yaml_lines import Value, read_yaml

Reader = Callable[[Value, Place], list[Evidence]]

KUBEADM_SETS: Final = (1, 37)
"""From then on kubeadm sets a mode: kubernetes/kubernetes#139777."""
_NONE: Final = "names no mode itself: kube-proxy's default"
_EKS_FIELDS: Final = frozenset({
    "affinity", "ipvs", "mode", "nodeSelector", "podAnnotations", "podLabels", "resources", "tolerations",
})  # fmt: skip
_KUBESPRAY_OWN: Final = frozenset({
    "kube_network_plugin", "kube_pods_subnet", "kube_service_addresses", "kube_config_dir", "kube_network_node_prefix",
})  # fmt: skip
_KUBESPRAY_IPVS: Final = frozenset({
    "kube_proxy_exclude_cidrs", "kube_proxy_scheduler", "kube_proxy_strict_arp", "kube_proxy_tcp_fin_timeout",
    "kube_proxy_tcp_timeout", "kube_proxy_udp_timeout",
})  # fmt: skip


def reader_of(document: Value) -> Reader | None:
    """What reads a document of one of these tools; None: it is of none of them."""
    version, kind = document.text("apiVersion"), document.text("kind")
    by_group = _BY_GROUP.get((version.split("/")[0], kind))
    if by_group is not None:
        return by_group
    if kind == "KubeProxyConfig" and version == "v1alpha1":
        return _talos_proxy
    if kind or version:
        return None
    return next((reader for recognised, reader in _BY_FIELDS if recognised(document)), None)


# -- k0s ---------------------------------------------------------------------------------------------------------------


def _k0s(document: Value, place: Place) -> list[Evidence]:
    section = document.get("spec", "network", "kubeProxy")
    if is_true(document, "spec.network.kubeProxy.disabled"):
        return [off(at(place, section), "spec.network.kubeProxy.disabled is true")]
    note = "k0s sets iptables, where no mode is named"
    found = named_mode(document, "spec.network.kubeProxy.mode", place, default="iptables", note=note)
    found += ipvs_options(document.get("spec", "network", "kubeProxy", "ipvs"), place)
    for item in document.items("spec", "featureGates"):
        components = [component.text() for component in item.items("components")]
        if not components or "kube-proxy" in components:
            found += gate(item.text("name"), item.text("enabled"), at(place, item.get("enabled") or item))
    flags = arguments(document.get("spec", "network", "kubeProxy", "extraArgs"), place)
    modes = [flag for flag in flags if flag.text.startswith("--proxy-mode=")]
    ignored = with_arguments(modes, place, default="", note="") if modes else []
    return found + set_aside(ignored, "k0s gives kube-proxy a configuration file, and its flags are ignored")


def _k0sctl(document: Value, place: Place) -> list[Evidence]:
    config = document.get("spec", "k0s", "config")
    return _k0s(config, place) if config is not None else []


# -- Talos -------------------------------------------------------------------------------------------------------------


def _talos(document: Value, place: Place) -> list[Evidence]:
    """A machine configuration, or a patch of one."""
    section = document.get("cluster", "proxy")
    if is_true(document, "cluster.proxy.disabled"):
        return [off(at(place, section), "cluster.proxy.disabled is true")]
    whole = document.text("version") == "v1alpha1" and document.text("machine", "type") in ("controlplane", "init")
    if section is None and not whole:
        return []  # of a worker, or a patch of something else
    flags = arguments(document.get("cluster", "proxy", "extraArgs"), place)
    named = [flag for flag in flags if flag.text.startswith(("--proxy-mode=", "--config="))]
    mode, note = _talos_default(document.text("cluster", "proxy", "image"))
    found = named_mode(document, "cluster.proxy.mode", place, default=mode, note=note)
    if named:
        if document.text("cluster", "proxy", "mode"):
            found = set_aside(found, "cluster.proxy.extraArgs goes before it")
        else:
            found = []
    elif not whole and not document.text("cluster", "proxy", "mode"):
        found = []  # a patch that leaves the mode as it is
    others = with_arguments(flags, place, default=mode, note=note)
    return found + [e for e in others if named or not isinstance(e, ConfiguredMode)]


def _talos_default(image: str) -> tuple[str, str]:
    """By the version in kube-proxy's image; without an image, that of a release which is far above 1.31."""
    tag = re.search(r":(v?\d+\.\d+[^@]*)", image)
    version = versions.parse(tag[1]) if tag else None
    if version is not None and version < (1, 31):
        return "iptables", "Talos itself passes --proxy-mode=iptables up to Kubernetes 1.30"
    return "nftables", "Talos itself passes --proxy-mode=nftables from Kubernetes 1.31 on"


def _talos_proxy(document: Value, place: Place) -> list[Evidence]:
    if is_false(document, "enabled"):
        return [off(at(place, document.get("enabled")), "enabled is false")]
    note = "Talos sets nftables, where no mode is named"
    found = named_mode(document, "mode", place, default="nftables", note=note)
    found += ipvs_options(document.get("config", "ipvs"), place)
    return [*found, *gates(document.get("config", "featureGates"), place)]


# -- kops, kind, minikube, kubeadm -------------------------------------------------------------------------------------


def _kops(document: Value, place: Place) -> list[Evidence]:
    section = document.get("spec", "kubeProxy")
    if is_false(document, "spec.kubeProxy.enabled"):
        return [off(at(place, section), "spec.kubeProxy.enabled is false")]
    found = named_mode(document, "spec.kubeProxy.proxyMode", place, default="", note=f"kops {_NONE}")
    if section is not None:
        found += prefixed_options(section, "ipvs", place)
        found += gates(section.get("featureGates"), place, as_text=True)
    return found


def _kind(document: Value, place: Place) -> list[Evidence]:
    if document.text("networking", "kubeProxyMode") == "none":
        return [off(at(place, document.get("networking", "kubeProxyMode")), "networking.kubeProxyMode is none")]
    note = "kind sets iptables, where no mode is named"
    found = named_mode(document, "networking.kubeProxyMode", place, default="iptables", note=note)
    patches = document.items("kubeadmConfigPatches")
    for node in document.items("nodes"):
        patches = patches + node.items("kubeadmConfigPatches")
    patched = [e for patch in patches for e in _kind_patch(patch, place)]
    if any(isinstance(e, ConfiguredMode) for e in patched):
        found = set_aside(found, "kubeadmConfigPatches goes before it")
    return [*found, *patched, *gates(document.get("featureGates"), place)]


def _kind_patch(patch: Value, place: Place) -> list[Evidence]:
    part = msgspec.structs.replace(place, part="kubeadmConfigPatches")
    documents, _ = read_yaml(patch.text(), patch.text_line or patch.line, one_line=not patch.text_line)
    found = [e for d in documents if is_proxy_config(d) for e in read_settings(d, part)]
    return [e for e in found if not (isinstance(e, ConfiguredMode) and not e.mode)]


def _minikube(document: Value, place: Place) -> list[Evidence]:
    """A profile's config.json. Options of kube-proxy are dotted fields of its configuration."""
    config = document.get("KubernetesConfig") or document
    found: list[Evidence] = []
    for item in config.items("ExtraOptions"):
        key, value = item.text("Key"), item.get("Value")
        if item.text("Component") == "kube-proxy" and value is not None:
            if key == "mode":
                found.append(ConfiguredMode(place=at(place, value), mode=value.text()))
            elif key.startswith("ipvs."):
                found += ipvs_options(Value({key.removeprefix("ipvs."): value}, value.line), place)
    if not any(isinstance(e, ConfiguredMode) for e in found) and config.whole:
        note = f"minikube {_NONE}"
        found.append(ConfiguredMode(place=at(place, config), sure="likely", mode="", note=note))
    listed = [Value(text, config.line) for text in config.text("FeatureGates").split(",") if text]
    return [*found, *listed_gates(listed, place)]


def kubeadm(document: Value, place: Place) -> list[Evidence]:
    """A ClusterConfiguration that no KubeProxyConfiguration stands beside."""
    if is_true(document, "proxy.disabled"):
        return [off(at(place, document.get("proxy")), "proxy.disabled is true")]
    if not document.whole:
        return []
    mode = ConfiguredMode(place=at(place, document), sure="likely", mode="", note=f"a {KIND} beside it would name one")
    return [with_kubeadm(mode, document)]


def with_kubeadm(item: ConfiguredMode, document: Value) -> ConfiguredMode:
    """A mode that kubeadm reads with this ClusterConfiguration: from 1.37 on it writes iptables where none is named."""
    version = versions.parse(document.text("kubernetesVersion"))
    if item.mode or item.overridden:
        return item
    if version is None:
        note = f"kubeadm names no mode itself before {versions.show(KUBEADM_SETS)}; this file says no kubernetesVersion"
        return msgspec.structs.replace(item, sets_from=versions.show(KUBEADM_SETS), note=note)
    if version < KUBEADM_SETS:
        return msgspec.structs.replace(item, note=f"kubeadm {_NONE} (before {versions.show(KUBEADM_SETS)})")
    note = f"kubeadm writes iptables from {versions.show(KUBEADM_SETS)} on, where no mode is named"
    return msgspec.structs.replace(item, mode="iptables", sure="likely", note=note)


def kubeadm_version(document: Value, place: Place) -> list[Evidence]:
    """Of Kubernetes, as the file asks for it."""
    value = document.get("kubernetesVersion")
    if value is None or versions.parse(value.text()) is None:
        return []
    return [Version(place=at(place, value), version=value.text(), of="kube-proxy")]


def is_kubeadm(document: Value) -> bool:
    return document.text("kind") == "ClusterConfiguration" and document.text("apiVersion").startswith("kubeadm.k8s.io/")


# -- RKE, Rancher ------------------------------------------------------------------------------------------------------


def _rke(document: Value, place: Place) -> list[Evidence]:
    section = document.get("services", "kubeproxy")
    words = [
        word
        for name in ("extra_args", "extra_args_array")
        for word in arguments(document.get("services", "kubeproxy", name), place)
    ]
    at_section = at(msgspec.structs.replace(place, part="services.kubeproxy"), section)
    return with_arguments(words, at_section, default="", note=f"RKE {_NONE}")


def _rancher(document: Value, place: Place) -> list[Evidence]:
    program = "rke2" if "rke2" in document.text("spec", "kubernetesVersion") else "k3s"
    common = document.get("spec", "rkeConfig", "machineGlobalConfig")
    if common is None:
        return []
    layers = k3s.from_file(common, place)
    found = k3s.read(program, layers, _file_of_node(place), at(place, common))
    for item in document.items("spec", "rkeConfig", "machineSelectorConfig"):
        config = item.get("config")
        if config is not None and k3s.is_config(config):
            pool = k3s.read(program, [*layers, *k3s.from_file(config, place)], _file_of_node(place), at(place, config))
            found += [e for e in pool if not (isinstance(e, ConfiguredMode) and e.overridden)]
    return found


def _file_of_node(place: Place) -> Callable[[str], list[Evidence]]:
    def read(path: str) -> list[Evidence]:
        cause = f"kube-proxy's --config is the file {path} of the node"
        return [Unreadable(place=place, cause=cause, remedy="run this on the node, or give that file with --config")]

    return read


# -- kubespray ---------------------------------------------------------------------------------------------------------


def _kubespray(document: Value, place: Place) -> list[Evidence]:
    mode = document.get("kube_proxy_mode")
    if is_true(document, "kube_proxy_remove"):
        return [off(at(place, document.get("kube_proxy_remove")), "kube_proxy_remove is true")]
    found: list[Evidence] = []
    if mode is not None and "{{" in mode.text():
        remedy = "see what it is in the inventory: ansible-inventory --list"
        found.append(Unreadable(place=at(place, mode), cause="kube_proxy_mode is a template", remedy=remedy))
    elif mode is not None or len(_KUBESPRAY_OWN & document.fields().keys()) >= 2:
        note = "kubespray sets ipvs, where kube_proxy_mode is not given"
        found += named_mode(document, "kube_proxy_mode", place, default="ipvs", note=note)
    for name in sorted(_KUBESPRAY_IPVS & document.fields().keys()):
        value = document.get(name)
        if (name, value.text() if value else "") != ("kube_proxy_scheduler", "rr"):
            options = ipvs_options(Value({name: value}, document.line), place)
            found += [IpvsOption(place=option.place, name=name, value=option.value) for option in options]
    own = document.get("kube_proxy_feature_gates") or document.get("kube_feature_gates")
    return [*found, *listed_gates(own.items() if own is not None else [], place)]


# -- AKS, EKS ----------------------------------------------------------------------------------------------------------


def _aks(document: Value, place: Place) -> list[Evidence]:
    """What --kube-proxy-config of `az aks` takes."""
    if is_false(document, "enabled"):
        return [off(at(place, document.get("enabled")), "enabled is false")]
    found = named_mode(document, "mode", place, default="", note=f"AKS {_NONE}", lower=True)
    return [*found, *ipvs_options(document.get("ipvsConfig"), place)]


def _aks_cluster(document: Value, place: Place) -> list[Evidence]:
    profile = document.get("networkProfile") or document.get("properties", "networkProfile")
    section = profile.get("kubeProxyConfig") if profile is not None else None
    if section is None or section.data is None:
        return [ConfiguredMode(place=at(place, profile), sure="likely", mode="", note=f"AKS {_NONE}")]
    return _aks(section, place)


def _eks(document: Value, place: Place) -> list[Evidence]:
    """The configuration values of EKS's add-on for kube-proxy."""
    found = named_mode(document, "mode", place, default="", note=f"EKS {_NONE}")
    return [*found, *ipvs_options(document.get("ipvs"), place)]


def _is_eks(document: Value) -> bool:
    fields = document.fields()
    rest = fields.keys() - {"mode", "ipvs"}
    scheduler = list(document.fields("ipvs")) == ["scheduler"]
    known = document.text("mode") in ("iptables", "ipvs", "nftables")
    return known and fields.keys() <= _EKS_FIELDS and bool(rest or scheduler)


_BY_GROUP: Final[dict[tuple[str, str], Reader]] = {
    ("k0s.k0sproject.io", "ClusterConfig"): _k0s,
    ("k0s.k0sproject.io", "Cluster"): _k0s,  # of early releases
    ("k0sctl.k0sproject.io", "Cluster"): _k0sctl,
    ("kops.k8s.io", "Cluster"): _kops,
    ("kops", "Cluster"): _kops,
    ("kind.x-k8s.io", "Cluster"): _kind,
    ("provisioning.cattle.io", "Cluster"): _rancher,
}
_BY_FIELDS: Final[Sequence[tuple[Callable[[Value], bool], Reader]]] = (
    (lambda d: "kube_proxy_mode" in d.fields() or len(_KUBESPRAY_OWN & d.fields().keys()) >= 2, _kubespray),
    (lambda d: "kube_proxy_remove" in d.fields(), _kubespray),
    (lambda d: d.get("services", "kubeproxy") is not None, _rke),
    (lambda d: d.get("cluster", "proxy") is not None, _talos),
    (lambda d: d.text("version") == "v1alpha1" and "machine" in d.fields(), _talos),
    (lambda d: d.get("KubernetesConfig", "KubernetesVersion") is not None, _minikube),
    (lambda d: d.text("mode") in ("IPTABLES", "IPVS", "NFTABLES"), _aks),
    (lambda d: d.get("networkProfile", "serviceCidr") is not None, _aks_cluster),
    (lambda d: d.get("properties", "networkProfile", "serviceCidr") is not None, _aks_cluster),
    (_is_eks, _eks),
)


def is_talos_pair(documents: Sequence[Value]) -> bool:
    """Whether a Talos configuration has a document for kube-proxy, beside which the old section does not count."""
    return any(d.text("kind") == "KubeProxyConfig" and d.text("apiVersion") == "v1alpha1" for d in documents)


def is_talos(document: Value) -> bool:
    return not document.text("kind") and document.text("version") == "v1alpha1" and "machine" in document.fields()


def evidence_of(documents: Sequence[Value], place: Place) -> Iterator[Evidence]:
    """What the documents of one file say that are of these tools."""
    pair = is_talos_pair(documents)
    for document in documents:
        reader = reader_of(document)
        if reader is not None and not (pair and is_talos(document)):
            yield from reader(document, place)
