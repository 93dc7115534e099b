"""The way to the API server: given, the pod's account, what the present kube-proxy uses, or as kubectl finds it."""

from __future__ import annotations

import base64
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import yaml

from proxy.detect.api_reader import Transport
from proxy.detect.command import kubeconfig as find_kubeconfig
from proxy.detect.host_files import HostFiles
from proxy.errors import SourceError
from proxy.migrate.present_host import OnHost

USUAL: Final = (
    "/var/lib/kube-proxy/kubeconfig.conf",
    "/var/lib/kube-proxy/kubeconfig",
    "/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig",
    "/var/lib/rancher/rke2/agent/kubeproxy.kubeconfig",
)
"""Where installers put kube-proxy's own, if its configuration names none."""
_REMEDY: Final = "give --kubeconfig FILE, or --manifests DIR for objects from files, or --bundle FILE"
_INLINE: Final = {
    "certificate-authority": "certificate-authority-data",
    "client-certificate": "client-certificate-data",
    "client-key": "client-key-data",
}

Connect = Callable[[str], Transport]
"""With a kubeconfig's path, '' for the pod's account. May raise SourceError."""


def connect(
    given: str, environment: Mapping[str, str], host: OnHost | None, files: HostFiles, make: Connect
) -> Transport:
    """given: a kubeconfig, '' for none. host: where the present kube-proxy's configuration was found, files: this
    machine's. Raises SourceError."""
    if given:
        return make(given)
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return make("")
    for at, path in _of_proxy(host, files):
        try:
            data = at.read(path)
        except OSError:
            continue
        return make(_whole(path, data, at))
    found = find_kubeconfig(None, environment)
    if not found:
        raise SourceError("API server", "nothing says where it is: no pod's account, no kubeconfig", _REMEDY)
    return make(found)


def _of_proxy(host: OnHost | None, files: HostFiles) -> Iterator[tuple[HostFiles, str]]:
    if host and host.found.kubeconfig:
        yield host.files, host.found.kubeconfig
    for path in USUAL:
        yield files, path


def _whole(path: str, data: bytes, files: HostFiles) -> str:
    """A path where this kubeconfig can be read here with all that it names, which may be in a container: in memory, never on
    a disk. Raises SourceError."""
    try:
        plain = yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for cluster in _inner(plain, "clusters", "cluster"):
            _take_in(cluster, path, files)
        for user in _inner(plain, "users", "user"):
            _take_in(user, path, files)
            if user.get("tokenFile"):
                user["token"] = files.read(_absolute(path, user.pop("tokenFile"))).decode().strip()
        text = yaml.safe_dump(plain)
    except OSError as error:
        remedy = f"run it as root on the node, or {_REMEDY}"
        raise SourceError(path, f"a file that it names: {error.strerror}", remedy) from None
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise SourceError(path, "it is no kubeconfig", _REMEDY) from None
    descriptor = os.memfd_create("kubeconfig")
    with open(descriptor, "w", closefd=False) as file:
        file.write(text)
    return (
        f"/proc/self/fd/{descriptor}"  # it lives as long as the process: credentials are read again from time to time
    )


def _inner(plain: Any, plural: str, singular: str) -> list[dict[str, Any]]:
    return [item[singular] for item in plain.get(plural) or () if isinstance(item.get(singular), dict)]


def _take_in(section: dict[str, Any], path: str, files: HostFiles) -> None:
    for name, inline in _INLINE.items():
        if section.get(name) and not section.get(inline):
            content = files.read(_absolute(path, section[name]))
            section[inline] = base64.b64encode(content).decode()
        section.pop(name, None)


def _absolute(kubeconfig: str, path: str) -> str:
    return posixpath.join(posixpath.dirname(kubeconfig), path)
