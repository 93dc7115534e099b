"""The present proxy's configuration, as a file that the user names: whatever the detector understands."""

from __future__ import annotations

from proxy import given_file
from proxy.detect.evidence import ConfiguredMode, Unreadable
from proxy.detect.files import read_file
from proxy.errors import ConfigError
from proxy.migrate.present import Found, of_text


def read_given(path: str) -> Found:
    """A KubeProxyConfiguration, a ConfigMap with one; of any other file that has or starts a kube-proxy, the mode alone. "-":
    standard input. Raises ConfigError."""
    name, data = given_file.name_of(path), given_file.read(path)
    return of_text(data, name) or Found({"mode": _mode(name, data)}, name)


def _mode(name: str, data: bytes) -> str:
    evidence = read_file(name, data, expected=True)
    modes = [item.mode for item in evidence if isinstance(item, ConfiguredMode) and not item.overridden]
    if modes:
        return modes[0]
    fault = next((item for item in evidence if isinstance(item, Unreadable)), None)
    remedy = "give a KubeProxyConfiguration, or a file that has or starts a kube-proxy"
    if fault is not None:
        raise ConfigError(name, fault.cause, fault.remedy or remedy)
    raise ConfigError(name, "there is no configuration of kube-proxy in it", remedy)
