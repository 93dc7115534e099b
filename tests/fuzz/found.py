"""Inputs that once broke something, and some that were made to: each is tried with every run of the tests."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.fuzz.on_configuration import KUBECONFIG
from tests.fuzz.on_objects import BOMB

CONFIG: Final = b"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
TEN: Final = b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + BOMB
DEEP: Final = b"[" * 3000 + b"]" * 3000
DOUBLING: Final = (
    b"#!/bin/sh\na0=xx\n" + b"".join(b"a%d=$a%d$a%d\n" % (n + 1, n, n) for n in range(40)) + b"kube-proxy $a40\n"
)
"""A million million characters."""


def _pod() -> bytes:
    """The same in a pod's variables."""
    variables = [{"name": f"a{n + 1}", "value": f"$(a{n})$(a{n})"} for n in range(40)]
    container: dict[str, Any] = {"name": "kube-proxy", "image": "kube-proxy", "command": ["kube-proxy", "$(a40)"]}
    container["env"] = [{"name": "a0", "value": "xx"}, *variables]
    pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "kube-proxy"}, "spec": {"containers": [container]}}
    return json.dumps(pod).encode()


REJECT: Final = b"\x0b\0\x01\0reject\0\0\x10\0\x02\0\x08\0\x01\0\0\0\0\0\x04\0\x02\0"
"""Its code is an attribute without a value."""
CATCH_ALL: Final = bytes.fromhex(
    "480000000c0a000400000000037b000002000003130001006b7562652d70726f78792d6e66740000"
    "10000200636c75737465722d69707300100003000c0001000800030000000002"
)
"""What the kernel tells of `nft add element ip kube-proxy-nft cluster-ips { * }`."""

HALF: Final = json.dumps(
    {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "hostnameOverride": "\ud800",
    }
).encode()

FOUND: Final[tuple[tuple[str, str, bytes], ...]] = (
    ("decode", "deep", b'{"metadata":{"name":"a"},"x":' + DEEP + b"}"),
    ("list", "deep", b'{"metadata":{},"items":[{"metadata":{"name":"a"},"x":' + DEEP + b"}]}"),
    ("stream", "deep", b'{"type":"ADDED","object":{"metadata":{"name":"a"},"x":' + DEEP + b"}}\n"),
    ("stream", "deep-error", b'{"type":"ERROR","object":{"x":' + DEEP + b"}}\n"),
    ("watcher", "deep", b'200\n{"metadata":{},"items":[{"metadata":{"name":"a"},"x":' + DEEP + b"}]}\n"),
    ("refusal", "deep", b'\n{"x":' + DEEP + b"}"),
    ("manifest", "bomb", TEN),
    ("manifest", "inside-itself", b"&a [*a]"),
    ("manifest", "deep", b"[" * 60_000),
    ("manifest", "deep-json", b'{"a":' * 10_000),
    ("manifest", "merged-with-itself", b"a: &a {<<: *a}"),
    ("manifest", "tag", b"!!bool foo"),
    ("manifest", "digits", b"a: " + b"9" * 5000),
    ("manifest", "utf-16", "kind: Service".encode("utf-16")),
    ("config", "bomb-that-nobody-reads", CONFIG + TEN),
    ("config", "bomb", CONFIG + TEN + b"clusterCIDR: *k\n"),
    ("config", "bomb-in-a-list", CONFIG + TEN + b"nodePortAddresses: *k\n"),
    ("config", "inside-itself", CONFIG + b"nodePortAddresses: &a [*a]"),
    ("config", "merged-with-itself", CONFIG + b"x: &a {<<: *a}"),
    ("config", "deep-json", b'{"a":' * 10_000),
    ("config", "digits", CONFIG + b"oomScoreAdj: " + b"9" * 5000),
    ("config", "a-date-that-is-none", CONFIG + b"clusterCIDR: 2026-13-45"),
    ("config", "tag-bool", CONFIG + b"mode: !!bool foo\n"),
    ("config", "tag-timestamp", CONFIG + b"mode: !!timestamp foo\n"),
    ("config", "tag-int", CONFIG + b"mode: !!int ''\n"),
    ("config", "half-a-character", HALF),
    ("flags", "interface-not-utf-8", b"--detect-local-mode=BridgeInterface\n--pod-bridge-interface=a\xe3"),
    ("flags", "two-lines", b"--nodeport-addresses=\rx"),
    ("flags", "long-value", b"--nodeport-addresses=" + b"a" * 140_000),
    ("flags", "dashes", b"--v=--"),
    ("flags", "dashes-for-a-number", b"--kube-api-qps=--"),
    ("flags", "dashes-for-pairs", b"--vmodule=--"),
    ("kubeconfig", "bomb", TEN + KUBECONFIG),
    ("kubeconfig", "inside-itself", b"x: &a [*a]\n" + KUBECONFIG),
    ("kubeconfig", "deep", b"x: " + b"[" * 900 + b"]" * 900 + b"\n" + KUBECONFIG),
    ("kubeconfig", "tag-bool", b"x: !!bool foo\n" + KUBECONFIG),
    ("kubeconfig", "tag-timestamp", b"x: !!timestamp foo\n" + KUBECONFIG),
    ("kubeconfig", "tag-int", b"x: !!int ''\n" + KUBECONFIG),
    ("environment", "digits-that-are-no-number", b"https://a.b:443\nx\na:\xb2"),
    ("environment", "digits", b"https://a.b:443\nx\na:" + b"9" * 5000),
    ("http", "no-end", b"GET /" + b"a" * 8192),
    ("http", "two-requests", b"GET /a HTTP/1.1\n\nGET /b HTTP/1.1\n\n"),
    ("small-answers", "deep", b"[" * 5000),
    ("small-answers", "infinite", b'{"pid": 1e999}'),
    ("file", "merged-with-itself", CONFIG + b"a: &a {<<: [*a]}"),
    ("file", "inside-itself", CONFIG + b"ipvs: {excludeCIDRs: &a [*a]}\n"),
    ("yaml", "bomb", TEN),
    ("yaml", "deep", b"- " * 30_000),
    ("yaml", "many-faults", b"a: *b\n" * 10_000),
    ("yaml", "tabs", b"\t" * 60_000),
    ("yaml", "inside-itself", b"a: &a [*a]\n"),
    ("yaml", "many-broken-documents", b"---\n]\n" * 10_000),
    ("script", "doubling", DOUBLING),
    ("objects", "doubling", _pod()),
    ("addresses", "no-error", b"\x14\0\0\0\2\0\2\0\1\0\0\0\0\0\0\0\0\0\0\x80"),
    ("refusals", "no-error", b"\x14\0\0\0\2\0\2\0\1\0\0\0\0\0\0\0\0\0\0\x80"),
    ("expressions", "empty-code", REJECT),
    ("changes", "empty", b"\x10\0\0\0\0\x0a\0\0\x01\0\0\0\x09\0\0\0"),
    ("changes", "catch-all", CATCH_ALL),
    ("adopt", "keys-of-another-size", b"\r\r\0\0\0\0\0\0\0\0"),
)
"""Target, what it is, the input."""
