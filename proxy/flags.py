"""kube-proxy's command-line flags, in one table: what each sets in the configuration. Spelled as in Go: --flag=value,
--flag value, --flag for booleans, lists with commas or by repeating the flag, _ for -."""

from __future__ import annotations

import argparse
import csv
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from proxy.config_fields import FIELDS
from proxy.config_reader import Given
from proxy.config_values import BadValue
from proxy.errors import UsageError
from proxy.subcommand import HELP_WIDTH


def _boolean(text: str) -> bool:
    words = {True: ("1", "t", "T", "true", "TRUE", "True"), False: ("0", "f", "F", "false", "FALSE", "False")}
    for value, spellings in words.items():
        if text in spellings:
            return value
    raise BadValue("must be true or false")


def _integer(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise BadValue("must be a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadValue("must be a number") from None


def _list(text: str) -> list[str]:
    try:
        return next(csv.reader([text]), [])
    except csv.Error as error:
        raise BadValue(f"must be a list with commas ({error})") from None


def _pairs(text: str, need: str) -> list[tuple[str, str]]:
    parts = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if not all(name and equals for name, equals, _ in parts):
        raise BadValue(f"must be {need}")
    return [(name.strip(), value.strip()) for name, _, value in parts]


def _gates(text: str) -> dict[str, bool]:
    return {name: _boolean(value) for name, value in _pairs(text, "pairs such as Feature=true,Other=false")}


def _vmodule(text: str) -> list[dict[str, Any]]:
    pairs = _pairs(text, "pairs such as file=2,other*=4")
    return [{"filePattern": pattern, "verbosity": _integer(value)} for pattern, value in pairs]


class Kind(NamedTuple):
    """How a flag's text becomes what a configuration file would have there."""

    convert: Callable[[str], Any]
    metavar: str
    adds: bool = False
    """Given again, it adds to what there is."""


TEXT: Final = Kind(str, "TEXT")
ADDRESS: Final = Kind(str, "IP")
LISTENER: Final = Kind(str, "IP[:PORT]")
NAME: Final = Kind(str, "NAME")
DURATION: Final = Kind(str, "DURATION")
CIDRS: Final = Kind(str, "CIDR[,CIDR]")
FILE: Final = Kind(str, "FILE")
BOOL: Final = Kind(_boolean, "[=BOOL]")
INT: Final = Kind(_integer, "N")
NUMBER: Final = Kind(_number, "N")
LIST: Final = Kind(_list, "A,B,...", adds=True)
GATES: Final = Kind(_gates, "A=BOOL,...", adds=True)
VMODULE: Final = Kind(_vmodule, "FILE=N,...", adds=True)


class Flag(NamedTuple):
    """field: what it sets. Without one, `about` says what it does, and the command line acts on it."""

    name: str
    kind: Kind
    field: str = ""
    about: str = ""
    used: bool = True
    beside_config: bool = False
    """It counts together with --config too; kube-proxy ignores the others then."""

    @property
    def has_effect(self) -> bool:
        return self.used and (not self.field or FIELDS[self.field].used)

    @property
    def help(self) -> str:
        return self.about or FIELDS[self.field].about


_NOT_READ: Final = "nothing here reads it"

FLAGS: Final = {
    flag.name: flag
    for flag in (
        Flag("bind-address", ADDRESS, "bindAddress"),
        Flag("bind-address-hard-fail", BOOL, "bindAddressHardFail"),
        Flag("boot-id-file", FILE, about=_NOT_READ, used=False),
        Flag("cleanup", BOOL, about="remove our tables and end, as the command cleanup does", beside_config=True),
        Flag("cluster-cidr", CIDRS, "clusterCIDR"),
        Flag("config-sync-period", DURATION, "configSyncPeriod"),
        Flag("conntrack-max-per-core", INT, "conntrack.maxPerCore"),
        Flag("conntrack-min", INT, "conntrack.min"),
        Flag("conntrack-tcp-be-liberal", BOOL, "conntrack.tcpBeLiberal"),
        Flag("conntrack-tcp-timeout-close-wait", DURATION, "conntrack.tcpCloseWaitTimeout"),
        Flag("conntrack-tcp-timeout-established", DURATION, "conntrack.tcpEstablishedTimeout"),
        Flag("conntrack-udp-timeout", DURATION, "conntrack.udpTimeout"),
        Flag("conntrack-udp-timeout-stream", DURATION, "conntrack.udpStreamTimeout"),
        Flag("detect-local-mode", Kind(str, "MODE"), "detectLocalMode"),
        Flag("feature-gates", GATES, "featureGates"),
        Flag("healthz-bind-address", LISTENER, "healthzBindAddress"),
        Flag("healthz-port", INT, "healthzBindAddress", "deprecated: the port of --healthz-bind-address, 0 for none"),
        Flag("hostname-override", NAME, "hostnameOverride", beside_config=True),
        Flag("init-only", BOOL, about="set the kernel's conntrack settings and end", beside_config=True),
        Flag("iptables-localhost-nodeports", BOOL, "iptables.localhostNodePorts"),
        Flag("iptables-masquerade-bit", INT, "iptables.masqueradeBit"),
        Flag("iptables-min-sync-period", DURATION, "iptables.minSyncPeriod"),
        Flag("iptables-sync-period", DURATION, "iptables.syncPeriod"),
        Flag("ipvs-exclude-cidrs", LIST, "ipvs.excludeCIDRs"),
        Flag("ipvs-min-sync-period", DURATION, "ipvs.minSyncPeriod"),
        Flag("ipvs-scheduler", TEXT, "ipvs.scheduler"),
        Flag("ipvs-strict-arp", BOOL, "ipvs.strictARP"),
        Flag("ipvs-sync-period", DURATION, "ipvs.syncPeriod"),
        Flag("ipvs-tcp-timeout", DURATION, "ipvs.tcpTimeout"),
        Flag("ipvs-tcpfin-timeout", DURATION, "ipvs.tcpFinTimeout"),
        Flag("ipvs-udp-timeout", DURATION, "ipvs.udpTimeout"),
        Flag("kube-api-burst", INT, "clientConnection.burst"),
        Flag("kube-api-content-type", TEXT, "clientConnection.contentType"),
        Flag("kube-api-qps", NUMBER, "clientConnection.qps"),
        Flag("log-flush-frequency", DURATION, "logging.flushFrequency", beside_config=True),
        Flag("log-json-info-buffer-size", TEXT, "logging.options.json.infoBufferSize", beside_config=True),
        Flag("log-json-split-stream", BOOL, "logging.options.json.splitStream", beside_config=True),
        Flag("log-text-info-buffer-size", TEXT, "logging.options.text.infoBufferSize", beside_config=True),
        Flag("log-text-split-stream", BOOL, "logging.options.text.splitStream", beside_config=True),
        Flag(
            "logging-format",
            Kind(str, "FORMAT"),
            "logging.format",
            "json or text, on a terminal or not",
            beside_config=True,
        ),
        Flag("machine-id-file", FILE, about=_NOT_READ, used=False),
        Flag("masquerade-all", BOOL, "nftables.masqueradeAll"),
        Flag(
            "master", Kind(str, "URL"), about="the API server's address, in the kubeconfig's place", beside_config=True
        ),
        Flag("metrics-bind-address", LISTENER, "metricsBindAddress"),
        Flag("metrics-port", INT, "metricsBindAddress", "deprecated: the port of --metrics-bind-address, 0 for none"),
        Flag("nodeport-addresses", LIST, "nodePortAddresses"),
        Flag("oom-score-adj", INT, "oomScoreAdj"),
        Flag("pod-bridge-interface", NAME, "detectLocal.bridgeInterface"),
        Flag("pod-interface-name-prefix", NAME, "detectLocal.interfaceNamePrefix"),
        Flag("profiling", BOOL, "enableProfiling"),
        Flag("proxy-mode", TEXT, "mode"),
        Flag("show-hidden-metrics-for-version", TEXT, "showHiddenMetricsForVersion"),
        Flag("v", INT, "logging.verbosity", "how much to log: from 4 on as --log-level debug", beside_config=True),
        Flag("version", Kind(str, "[=BOOL|raw]"), about="print the version and end", beside_config=True),
        Flag("vmodule", VMODULE, "logging.vmodule", beside_config=True),
        Flag("write-config-to", FILE, about="write the configuration that results to FILE and end", beside_config=True),
    )
}
"""--config, --kubeconfig and --help are our own flags too, and not in here."""

TLS_FLAGS: Final = {
    flag.name: flag
    for flag in (
        Flag(
            "metrics-tls-cert-file",
            FILE,
            about="serve what is on --metrics-bind-address over TLS, with this certificate and its chain (PEM); read again "
            "when it changes, as are the other two",
            beside_config=True,
        ),
        Flag(
            "metrics-tls-key-file",
            FILE,
            about="the key of --metrics-tls-cert-file (PEM, without a passphrase); may be the same file",
            beside_config=True,
        ),
        Flag(
            "metrics-client-ca-file",
            FILE,
            about="with the other two: let only clients in that have a certificate of one of these authorities (PEM)",
            beside_config=True,
        ),
    )
}
"""Ours, which kube-proxy does not have."""

_ALL: Final = FLAGS | TLS_FLAGS

BARE: Final = frozenset(flag.name for flag in FLAGS.values() if flag.kind.metavar.startswith("[="))
"""Those that need no value."""
PORTS: Final = {"healthz-port": "0.0.0.0", "metrics-port": "127.0.0.1"}
"""The deprecated flags for a port, and the address when none is given."""


def normalise(arguments: Sequence[str]) -> list[str]:
    """The same in argparse's spelling."""
    found = []
    for argument in arguments:
        if argument.startswith("--") and argument != "--":
            name, equals, value = argument.partition("=")
            name = name.replace("_", "-")
            argument = f"{name}=true" if name.removeprefix("--") in BARE and not equals else f"{name}{equals}{value}"
        found.append(argument)
    return found


class _Collect(argparse.Action):
    """Leaves (name, text) in the namespace's `flags`, in the order they are given."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, text: Any, option: str | None = None) -> None:
        text = text if isinstance(text, str) else "--"  # which argparse takes away, as the end of all options
        namespace.flags = [*(namespace.flags or []), ((option or "").lstrip("-"), text)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Let `parser` take them; what they were given is in the namespace's `flags`, for `GivenFlags`."""
    group = parser.add_argument_group("kube-proxy's flags that have an effect here")
    for flag in FLAGS.values():
        names = ["-v", "--v"] if flag.name == "v" else [f"--{flag.name}"]
        help = flag.help.replace("`", "").replace("%", "%%") if flag.has_effect else argparse.SUPPRESS
        group.add_argument(*names, action=_Collect, dest="flags", metavar=flag.kind.metavar, help=help)
    ours = parser.add_argument_group("flags for metrics that kube-proxy does not have")
    for flag in TLS_FLAGS.values():
        ours.add_argument(f"--{flag.name}", action=_Collect, dest="flags", metavar=flag.kind.metavar, help=flag.help)
    idle = " ".join(f"--{flag.name}" for flag in FLAGS.values() if not flag.has_effect)
    lines = textwrap.fill(idle, HELP_WIDTH - 4, break_on_hyphens=False)
    parser.add_argument_group("kube-proxy's flags that are accepted and have no effect here", lines)


class GivenFlags:
    """What the command line says with them. beside_config: a configuration file is given too."""

    def __init__(self, flags: Sequence[tuple[str, str]], beside_config: bool) -> None:
        self._given = [(_ALL[name], text) for name, text in flags]
        self._beside_config = beside_config

    def value(self, name: str) -> str:
        """What this flag was given last; "" without it."""
        return next((text for flag, text in reversed(self._given) if flag.name == name), "")

    def is_on(self, name: str) -> bool:
        """Of a boolean flag. Raises UsageError."""
        text = self.value(name)
        try:
            return bool(text) and _boolean(text)
        except BadValue as e:
            raise UsageError(f"--{name}", f"is {text!r}: {e}", "correct the flag") from None

    @property
    def ignored(self) -> list[str]:
        """Those that do not count because there is a configuration file."""
        return list(dict.fromkeys(f"--{flag.name}" for flag, _ in self._given if not self._counts(flag)))

    @property
    def without_effect(self) -> list[tuple[str, str]]:
        """Those that belong to no field, and why they do nothing."""
        flags = dict.fromkeys(flag for flag, _ in self._given if not flag.used)
        return [(f"--{flag.name}", f"no effect here: {flag.about}") for flag in flags]

    @property
    def fields(self) -> list[Given]:
        """What they set in the configuration. Raises UsageError, which names every flag with a value that cannot be."""
        found: dict[str, Given] = {}
        faults = []
        for flag, text in self._given:
            if not flag.field or flag.name in PORTS or not self._counts(flag):
                continue
            label = f"--{flag.name}"
            try:
                raw = flag.kind.convert(text)
            except BadValue as e:
                faults.append(f"{label} is {text!r}: {e}")
                continue
            if flag.kind.adds and flag.field in found:
                before = found[flag.field].raw
                raw = before | raw if isinstance(raw, dict) else before + raw
            found[flag.field] = Given(flag.field, raw, label, repr(text), is_flag=True)
        for name in PORTS:
            if not self._beside_config and self.value(name):
                faults += self._add_port(name, found)
        if faults:
            raise UsageError("command line", "; ".join(faults), "correct the flags")
        return list(found.values())

    def _counts(self, flag: Flag) -> bool:
        return flag.beside_config or not self._beside_config

    def _add_port(self, name: str, found: dict[str, Given]) -> list[str]:
        """0: nothing is served. Else it counts if the address has none. Returns the fault, if there is one."""
        text, field = self.value(name), FLAGS[name].field
        try:
            port = _integer(text)
        except BadValue as e:
            return [f"--{name} is {text!r}: {e}"]
        address = str(found[field].raw) if field in found else PORTS[name]
        if address and address.count(":") != 1 and not address.startswith("["):
            address = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        found[field] = Given(field, address if port else "", f"--{name}", repr(text), is_flag=True)
        return []
