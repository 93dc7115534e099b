"""What an operator writes: the configuration file, flags, kubeconfigs, the environment, durations; and HTTP requests."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, lru_cache
from http import HTTPStatus
from typing import Final

import msgspec

from proxy import config_report, flags, healthz
from proxy.config import Config, load_config, node_name, parse_config
from proxy.connections import Sockets, manager
from proxy.credentials import tls_context
from proxy.durations import parse_duration, show_duration
from proxy.errors import ConfigError, SourceError, UsageError, UserError
from proxy.flags import GivenFlags
from proxy.http_message import MAX_REQUEST, Request, Response, parse, render
from proxy.http_proxy import proxy_for
from proxy.kubeconfig import Access, Pem, read_access, without_password
from proxy.nodes import NodeInfo
from proxy.settings import settings
from rules.layout import LAYOUTS, Options
from rules.objects import Family
from rules.tables import create
from rules.text import render as as_text
from rules.wire import encode
from tests.fuzz import corpus
from tests.fuzz.hunt import Target
from tests.fuzz.on_objects import BOMB, JSON_TOKENS, YAML_TOKENS, bits
from tests.fuzz.trees import YAML

# -- The configuration -------------------------------------------------------------------------------------------------


def _check_config(data: bytes) -> None:
    try:
        config = parse_config(data, "the file")
    except ConfigError as error:
        _says_why(error)
        return
    _is_sound(config)
    _is_shown(config)


def _says_why(error: UserError) -> None:
    assert error.cause and str(error).encode(errors="backslashreplace")  # so does the log


def _is_sound(config: Config) -> None:
    """It can be used, by all that use one."""
    with suppress(ConfigError):
        assert node_name(config, "").strip()
    made = settings(config)
    addresses = made.nodeport_ips(None, (bytes(4), bytes([127, 0, 0, 1]), bytes([10, 1, 0, 1]), bytes(16)))
    assert all(Family.of(address) is family for family, found in addresses.items() for address in found)
    _builds_tables(made.options_on(NodeInfo()) or made.options)
    seconds = (config.nftables.sync_period, config.nftables.min_sync_period, config.config_sync_period)
    assert all(math.isfinite(value) and value >= 0 for value in seconds)
    assert all(len(note) == 2 and note[1] for note in (*config.warnings, *config.without_effect))


@lru_cache(maxsize=100)
def _builds_tables(options: Options) -> None:
    for layout in LAYOUTS.values():
        operations = create(layout, options, ())
        encode(operations)
        as_text(operations).encode()


def _is_shown(config: Config) -> None:
    """As text it means the same again."""
    for form in config_report.FORMATS:
        text = config_report.show(config, form)
        again = parse_config(text.encode(), "what was shown")
        if config.healthz_bind_address and config.metrics_bind_address:  # a file cannot say that one is not served
            assert _without_notes(again) == _without_notes(config)


def _without_notes(config: Config) -> Config:
    return msgspec.structs.replace(config, warnings=(), without_effect=())


def _configurations() -> list[bytes]:
    found = {**corpus.files("config/*"), **corpus.files("detect/plain/*.yaml", "dataplanes/*/configz*")}
    recorded = [data for data in found.values() if data.lstrip()[:1] in (b"{", b"a", b"k")]
    for data in found.values():
        with suppress(ValueError, KeyError, TypeError):
            inner = json.loads(data)
            recorded += [json.dumps(value).encode() for value in inner.values() if isinstance(value, dict)]
    return [*recorded, config_report.show(Config()).encode(), config_report.show(Config(), "json").encode()]


# -- Flags -------------------------------------------------------------------------------------------------------------


@cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False, add_help=False)
    flags.add_arguments(parser)
    return parser


def _check_flags(data: bytes) -> None:
    """data: arguments, one a line."""
    arguments = data.decode(errors="surrogateescape").split("\n")  # as sys.argv has what is no text
    try:
        found = _parser().parse_known_args(flags.normalise(arguments))[0].flags
    except argparse.ArgumentError:
        return
    for beside_config in (False, True):
        given = GivenFlags(found or (), beside_config)
        assert isinstance(given.ignored, list) and isinstance(given.without_effect, list)
        for name in ("cleanup", "init-only", "version"):
            with suppress(UsageError):
                given.is_on(name)
        with suppress(UsageError, ConfigError):
            _is_sound(load_config(None, given.fields))


def _command_lines() -> list[bytes]:
    recorded = [line.encode() for line in _flag_lines()]
    pairs = [
        b"--cluster-cidr\n10.244.0.0/16,fd00::/48\n--proxy-mode=ipvs\n--nodeport-addresses=primary\n--v=4",
        b"--feature-gates=AllAlpha=true,NFTablesProxyMode=false\n--vmodule=proxy=3\n--healthz-port=0\n--metrics-port\n10",
        b"--detect-local-mode=BridgeInterface\n--pod-bridge-interface=cni0\n--masquerade-all\n--oom-score-adj=-5",
        b"--ipvs-exclude-cidrs=10.0.0.0/8\n--ipvs-exclude-cidrs=fd00::/8\n--conntrack-udp-timeout=1h0m0.5s\n--kube-api-qps=5.5",
    ]
    return [*recorded, *pairs]


def _flag_lines() -> Iterator[str]:
    for flag in flags.FLAGS.values():
        yield f"--{flag.name}"
        for value in ("true", "5", "30s", "::1", "0.0.0.0:10256", "a=true,b=false", "NodeCIDR"):
            yield f"--{flag.name}={value}"


# -- Durations ---------------------------------------------------------------------------------------------------------


def _check_duration(data: bytes) -> None:
    try:
        seconds = parse_duration(data.decode("latin-1"))
    except ValueError:
        return
    assert math.isfinite(seconds)
    again = parse_duration(show_duration(seconds))
    assert math.isclose(again, seconds, rel_tol=1e-9, abs_tol=1e-9)


# -- Kubeconfigs and the environment -----------------------------------------------------------------------------------


def _check_kubeconfig(data: bytes) -> None:
    descriptor = os.memfd_create("kubeconfig")
    try:
        os.write(descriptor, data)
        access = read_access(f"/proc/self/fd/{descriptor}", "", {})
    except SourceError as error:
        _says_why(error)
        return
    finally:
        os.close(descriptor)
    assert access.servers
    _is_usable(access)


def _is_usable(access: Access) -> None:
    """Sockets can be made for it, or it is said why not. No file that it names is looked at."""
    here = {name: Pem(data=getattr(access, name).data) for name in ("ca", "certificate", "key")}
    try:
        context = tls_context(msgspec.structs.replace(access, ca=here["ca"]), here["certificate"], here["key"])
        for server in access.servers:
            assert without_password(server)
            manager(server, access, context, Sockets(), {}).clear()
    except SourceError as error:
        _says_why(error)


def _check_environment(data: bytes) -> None:
    """data: a URL, and the environment's HTTPS_PROXY and NO_PROXY, one a line."""
    url, https, no_proxy, *_ = [*data.decode("latin-1").split("\n"), "", ""]
    for environment in (
        {"HTTPS_PROXY": https, "NO_PROXY": no_proxy},
        {"KUBERNETES_SERVICE_HOST": https, "KUBERNETES_SERVICE_PORT": no_proxy},
    ):
        try:
            access = read_access("", url, environment)
        except SourceError:
            continue
        for server in access.servers:
            assert isinstance(proxy_for(server, environment), str)
            with suppress(SourceError):
                manager(server, access, None, Sockets(), environment).clear()


KUBECONFIG: Final = b"""apiVersion: v1
kind: Config
current-context: here
contexts:
- name: here
  context: {cluster: one, user: me}
clusters:
- name: one
  cluster:
    server: https://192.0.2.1:6443
    certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==
    tls-server-name: kubernetes
    proxy-url: http://user:word@192.0.2.9:3128
users:
- name: me
  user:
    token: abc
    client-certificate-data: LS0t
    client-key-data: LS0t
    exec: {apiVersion: client.authentication.k8s.io/v1, command: x, args: [a], env: [{name: A, value: b}]}
"""

# -- HTTP --------------------------------------------------------------------------------------------------------------


def _check_http(data: bytes) -> None:
    whole = parse(data)
    assert whole is not None or len(data) < MAX_REQUEST
    # Who asks slowly is told the same.
    size = bits(data).randint(0, len(data))
    before = parse(data[:size])
    assert before is None or before == whole or size >= MAX_REQUEST
    if isinstance(whole, Request):
        now = datetime(2026, 11, 30, tzinfo=UTC)
        whole = healthz.answer(whole, healthz.Status(True, True, True, 1.0), tuple(Family), now)
    if isinstance(whole, Response):
        for head_only in (False, True):
            head, _, body = render(whole, 0.0, head_only=head_only).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 ") and body == (b"" if head_only else whole.body)
        assert whole.status in HTTPStatus


def _requests() -> Sequence[bytes]:
    return [
        b"GET /healthz HTTP/1.1\r\nHost: 10.0.0.1:10256\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\n\r\n",
        b"GET /livez?verbose HTTP/1.0\n\n",
        b"HEAD /metrics HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    ]


_FLAG_TOKENS: Final = (
    b"--",
    b"=",
    b"\n",
    b",",
    b"true",
    b'"',
    b"0x",
    b"0o",
    b"nan",
    b"inf",
    b"1e9",
    b"h",
    b"ms",
    b"primary",
    b"\x80",
    b"_",
)
_HTTP_TOKENS: Final = (
    b"\r\n",
    b"\r\n\r\n",
    b"\n\n",
    b" ",
    b"HTTP/1.1",
    b"GET ",
    b"?",
    b"%00",
    b"/../",
    b"\0",
    b"\xff",
    b"A" * 9000,
)
_URL_TOKENS: Final = (
    b"://",
    b"[",
    b"]",
    b":",
    b"@",
    b"/",
    b",",
    b"*",
    b".",
    b"\xb2",
    b"\xbc",
    b"%",
    b"socks5://",
    b"https://",
    b"[::1]",
)
_CONFIG_TOKENS: Final = (
    *YAML_TOKENS,
    *JSON_TOKENS,
    BOMB,
    b"clusterCIDR: ",
    b"nodePortAddresses: ",
    b"featureGates: ",
    b"\\ud800",
)

TARGETS: Final = (
    Target("config", _configurations, _check_config, _CONFIG_TOKENS, (YAML,), 120),
    Target("flags", _command_lines, _check_flags, _FLAG_TOKENS, (), 500),
    Target("duration", lambda: [b"1h0m0s", b"1.5h", b"-300ms", b"0", b"5us", b"1ns"], _check_duration, _FLAG_TOKENS, (), 1000),
    Target("kubeconfig", lambda: [KUBECONFIG], _check_kubeconfig, (*YAML_TOKENS, BOMB), (YAML, YAML), 400),
    Target(
        "environment",
        lambda: [b"https://api.example:6443\nhttp://proxy:3128\n10.0.0.0/8,.example,*.x:80,[::1]", b"https://[fd00::1]\n10.0.0.1\n443"],
        _check_environment,
        _URL_TOKENS,
        (),
        1000,
    ),
    Target("http", _requests, _check_http, _HTTP_TOKENS, (), 2000),
)  # fmt: skip
