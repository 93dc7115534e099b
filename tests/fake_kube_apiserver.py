"""Programs that take the flags of etcd and kube-apiserver, to try what starts those: nothing of what they do is real but
the stand-in's answers. python -m tests.fake_kube_apiserver etcd|kube-apiserver FLAGS"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from integration.apiserver import FakeApi, Object
from integration.apiserver.kinds import KINDS
from integration.apiserver_real import can_stream
from tests.apis import PROXY_RULES

REPO = Path(__file__).parents[1]
ETCD_FLAGS = (
    "name", "data-dir", "listen-client-urls", "advertise-client-urls", "listen-peer-urls",
    "initial-advertise-peer-urls", "initial-cluster", "unsafe-no-fsync",
)  # fmt: skip
FLAGS = (
    "etcd-servers", "bind-address", "advertise-address", "secure-port", "cert-dir", "tls-cert-file",
    "tls-private-key-file", "client-ca-file", "token-auth-file", "authorization-mode", "service-account-issuer",
    "service-account-key-file", "service-account-signing-key-file", "service-cluster-ip-range",
    "disable-admission-plugins", "endpoint-reconciler-type",
)  # fmt: skip


def install(folder: Path) -> Path:
    """Put programs of the two names into a folder."""
    for name in ("etcd", "kube-apiserver"):
        program = folder / name
        run = f'exec {sys.executable} -m tests.fake_kube_apiserver {name} "$@"'
        program.write_text(f"#!/bin/sh\nPYTHONPATH={REPO} {run}\n")
        program.chmod(0o755)
    return folder


def _flags(names: tuple[str, ...], argv: list[str]) -> dict[str, str]:
    """As strict as those of the real programs."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in names:
        parser.add_argument(f"--{name}", default="")
    return {name.replace("_", "-"): value for name, value in vars(parser.parse_args(argv)).items()}


def etcd(argv: list[str]) -> None:
    flags = _flags(ETCD_FLAGS, argv)
    answers = {
        "/health": {"health": "true"},
        "/version": {"etcdserver": "3.6.1", "etcdcluster": "3.6.0"},
        "/v3/kv/range": {"header": {"revision": "7"}},
        "/v3/kv/compaction": {"header": {"revision": "7"}},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

    port = urlsplit(flags["listen-client-urls"]).port or 0
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def kube_apiserver(argv: list[str]) -> None:
    flags = _flags(FLAGS, argv)
    for name in FLAGS:
        if not flags[name]:
            sys.exit(f"Error: --{name} is needed")
    tokens = {row[0]: row[1] for row in csv.reader(Path(flags["token-auth-file"]).read_text().splitlines())}
    api = FakeApi(
        port=int(flags["secure-port"]),
        tls=(flags["tls-cert-file"], flags["tls-private-key-file"]),
        tokens=tokens,
        rules={"nobody": [], "system:kube-proxy": PROXY_RULES},
    )
    with build_opener(ProxyHandler({})).open(flags["etcd-servers"] + "/version") as answer:
        etcd_version = tuple(map(int, json.load(answer)["etcdserver"].split(".")))
    api.streaming = "on" if can_stream(etcd_version) else "off"
    kept = Path(flags["cert-dir"]) / "state.json"
    state: dict[str, Any] = (
        json.loads(kept.read_text()) if kept.exists() else {"version": 1, "objects": first_objects(flags)}
    )
    for obj in state["objects"]:
        api.put(obj)
    api.version = max(api.version, state["version"])
    api.compact()

    def stop(number: int, frame: FrameType | None) -> None:
        objects = [obj for kind in KINDS for obj in api.objects(kind)]
        kept.write_text(json.dumps({"version": api.version + 1, "objects": objects}))
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    with api:
        signal.pause()


def first_objects(flags: dict[str, str]) -> list[Object]:
    """What an API server makes when there is nothing."""
    cidrs = flags["service-cluster-ip-range"].split(",")
    spec = {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}
    return [
        {"kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs}},
        {"kind": "Service", "metadata": {"name": "kubernetes", "namespace": "default"}, "spec": spec},
    ]


if __name__ == "__main__":
    {"etcd": etcd, "kube-apiserver": kube_apiserver}[sys.argv[1]](sys.argv[2:])
