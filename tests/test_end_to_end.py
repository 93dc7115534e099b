"""`kube-proxy-nft run` as a process, from a directory or an API server to the kernel of a namespace."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.apiserver.server import FakeApi
from proxy.model import KubeObject, convert
from rules.dump import TableState
from rules.errors import KernelUnreachable
from rules.layout import LAYOUTS
from rules.objects import Family
from tests.histories import NODE_NAME, Cluster, identity
from tests.netns import Namespace
from tests.objects import Object, endpoint_slice, list_of, service
from tests.test_histories import content, from_scratch

REPO = Path(__file__).parents[1]
NSENTER = shutil.which("nsenter") or "nsenter"
PATIENCE = 20.0


def eventually(done: Callable[[], object], what: str = "") -> None:
    """Wait until `done()`."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what or done}"
        time.sleep(0.01)


class Node:
    """A namespace, perhaps with an agent in it."""

    def __init__(self, namespace: Namespace, log: Path) -> None:
        self.namespace, self.log = namespace, log
        self.process: subprocess.Popen[bytes] | None = None
        namespace.run("ip", "link", "set", "lo", "up")

    def start(self, *arguments: str | Path) -> None:
        enter = [NSENTER, f"--net=/proc/{os.getpid()}/fd/{self.namespace.descriptor}"]
        options = ["--node", NODE_NAME, "--log-level", "debug", *map(str, arguments)]
        argv = [*enter, sys.executable, "-m", "proxy", "run", *options]
        variables = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stderr=log, env=variables | {"PYTHONPATH": str(REPO)})

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process
        self.process.send_signal(number)
        code = self.process.wait(timeout=PATIENCE)
        self.process = None
        return code

    def events(self, *names: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return [event for event in lines if not names or event["event"] in names]

    def logged(self, name: str, times: int = 1) -> None:
        """Wait until the agent has logged it so many times."""
        eventually(lambda: len(self.events(name)) >= times, f"log event {name}")

    @property
    def watches(self) -> bool:
        """Whether the agent has joined the group that tells of others' changes."""
        assert self.process
        groups = [line.split() for line in Path(f"/proc/{self.process.pid}/net/netlink").read_text().splitlines()[1:]]
        return any(line[1] == "12" and int(line[3], 16) & 0x40 for line in groups)

    def tables(self) -> list[TableState | None]:
        return [self.namespace.kernel.dump(layout.table) for layout in LAYOUTS.values()]

    def holds(self, *objects: Object) -> None:
        """Wait until the kernel has what a fresh agent would make of these objects."""
        cluster: Cluster = {}
        for data in objects:
            obj: KubeObject = convert(data["kind"], data)
            cluster.setdefault(identity(obj), obj)
        expected = from_scratch(cluster, 0)
        eventually(lambda: self._is(expected), "what the kernel holds is what the objects say")

    def _is(self, expected: Any) -> bool:
        assert self.process is None or self.process.poll() is None, self.log.read_text()[-2000:]
        try:
            return all(content(self.namespace.kernel.dump(LAYOUTS[f].table)) == expected[f] for f in Family)
        except (AssertionError, KeyError, OSError, KernelUnreachable):  # there is no table; it changes while it is read
            return False


@pytest.fixture
def node(namespace: Namespace, tmp_path: Path) -> Iterator[Node]:
    made = Node(namespace, tmp_path / "log")
    yield made
    if made.process:
        made.stop(signal.SIGKILL)
    assert "Traceback" not in made.log.read_text()


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    directory = tmp_path / "manifests"
    directory.mkdir()
    return directory


@pytest.fixture
def api(namespace: Namespace, node: Node) -> Iterator[FakeApi]:
    """An API server in the namespace, not yet started."""
    server = FakeApi()
    yield server
    server.stop()


def write(directory: Path, name: str, *objects: Object) -> None:
    """Replace a file atomically."""
    temporary = directory / f".{name}.new"
    temporary.write_text(list_of(*objects))
    temporary.rename(directory / name)


WEB = [service("web", "10.96.0.1", "fd00::1"), endpoint_slice("web", "10.244.0.1", "10.244.0.2")]
WEB6 = endpoint_slice("web", "fd44::1", name="web-6")
PORTS = [{"name": p.lower(), "port": 53, "protocol": p} for p in ("TCP", "UDP", "SCTP")]
TARGETS = [{"name": p.lower(), "port": 1053 + i, "protocol": p} for i, p in enumerate(("TCP", "UDP", "SCTP"))]
ALL_SORTS = [
    *WEB,
    WEB6,
    service("v6-first", "fd00::2", "10.96.0.2"),
    endpoint_slice("v6-first", "10.244.0.3", name="v6-first-4"),
    endpoint_slice("v6-first", "fd44::3", name="v6-first-6"),
    service("v6-only", "fd00::3"),
    endpoint_slice("v6-only", "fd44::4"),
    service("protocols", "10.96.0.4", "fd00::4", ports=PORTS),
    endpoint_slice("protocols", "10.244.0.5", "10.244.0.6", ports=TARGETS, name="protocols-4"),
    endpoint_slice("protocols", "fd44::5", ports=TARGETS, name="protocols-6"),
    service("ünïcode-服务", "10.96.0.5"),
    endpoint_slice("ünïcode-服务", "10.244.0.7"),
    service("none", "10.96.0.6"),
    {"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": "kubernetes"},
     "spec": {"cidrs": ["10.96.0.0/16", "fd00::/112"]}},
    {"kind": "Node", "apiVersion": "v1", "metadata": {"name": NODE_NAME}},
]  # fmt: skip


# From a directory.


def test_all_sorts_of_services(node: Node, manifests: Path) -> None:
    write(manifests, "all.json", *ALL_SORTS)
    node.start("--manifests", manifests)
    node.holds(*ALL_SORTS)
    for i, obj in enumerate(ALL_SORTS):  # and one by one, each in a file of its own
        (manifests / f"{i}.json").write_text(json.dumps(obj))
    (manifests / "all.json").unlink()
    node.holds(*ALL_SORTS)
    for path in sorted(manifests.glob("*.json"))[::2]:
        path.unlink()
    node.holds(*(json.loads(path.read_text()) for path in manifests.glob("*.json")))
    assert node.stop() == 0


def test_a_thousand_replacements_end_with_what_the_files_say(node: Node, manifests: Path) -> None:
    rand = random.Random(3)
    names = [f"s{i}" for i in range(10)]

    def objects(i: int) -> list[Object]:
        pods = rand.sample(range(1, 250), rand.randrange(6))
        made = [endpoint_slice(names[i], *(f"10.244.{i}.{pod}" for pod in pods))]
        if rand.random() < 0.9:
            made.append(service(names[i], f"10.96.0.{i + 1 if rand.random() < 0.9 else 100}"))
        return made

    files = {f"{name}.json": objects(i) for i, name in enumerate(names)}
    for name, held in files.items():
        write(manifests, name, *held)
    node.start("--manifests", manifests)
    node.logged("programmed")
    for _ in range(1000):
        i = rand.randrange(len(names))
        name = f"{names[i]}.json"
        if rand.random() < 0.05:
            files.pop(name, None)
            (manifests / name).unlink(missing_ok=True)
        else:
            files[name] = objects(i)
            write(manifests, name, *files[name])
    node.holds(*(obj for held in files.values() for obj in held))
    write(manifests, "last.json", service("last", "10.96.1.1"))
    node.holds(service("last", "10.96.1.1"), *(obj for held in files.values() for obj in held))
    assert not node.events("transaction_refused", "manifest_broken")


def test_a_half_written_file_changes_nothing_until_it_is_whole(node: Node, manifests: Path) -> None:
    write(manifests, "web.json", *WEB)
    node.start("--manifests", manifests)
    node.holds(*WEB)
    text = list_of(*WEB, WEB6)
    with (manifests / "web.json").open("w") as file:
        for start in range(0, len(text), 40):
            file.write(text[start : start + 40])
            file.flush()
        write(manifests, "other.json", service("other", "10.96.0.9"))
        node.holds(*WEB, service("other", "10.96.0.9"))
    node.holds(*WEB, WEB6, service("other", "10.96.0.9"))
    (manifests / "web.json").write_text(text[:-30])  # closed, and still half
    node.logged("manifest_broken")
    write(manifests, "other.json", service("other", "10.96.0.10"))
    node.holds(*WEB, WEB6, service("other", "10.96.0.10"))
    assert len(node.events("manifest_broken")) == 1


def test_a_directory_that_goes_and_comes_back(node: Node, manifests: Path) -> None:
    write(manifests, "web.json", *WEB)
    node.start("--manifests", manifests)
    node.holds(*WEB)
    before = node.tables()
    manifests.rename(manifests.with_name("elsewhere"))
    node.logged("manifest_directory_lost")
    assert node.tables() == before  # its objects stay
    manifests.mkdir()
    write(manifests, "other.json", service("other", "10.96.0.9"))
    node.logged("manifest_directory_back")
    node.holds(service("other", "10.96.0.9"))


def test_many_services_and_many_endpoints(node: Node, manifests: Path) -> None:
    many: list[Object] = []
    for i in range(5000):
        address = f"{i >> 8}.{i & 255}"
        many += [service(f"s{i}", f"10.96.{address}"), endpoint_slice(f"s{i}", f"10.244.{address}")]
    large = [service("large", "10.97.0.1")]
    large += [
        endpoint_slice("large", *(f"11.0.{i}.{j}" for j in range(100)), name=f"large-{i}") for i in range(30)
    ]  # fmt: skip
    write(manifests, "many.json", *many)
    write(manifests, "large.json", *large)
    node.start("--manifests", manifests)
    node.holds(*many, *large)
    write(manifests, "large.json", *large[:-3])
    node.holds(*many, *large[:-3])
    write(manifests, "many.json", *many[2000:])
    node.holds(*many[2000:], *large[:-3])
    assert node.stop() == 0


def test_a_node_learns_where_it_is(node: Node, manifests: Path) -> None:
    def endpoint(address: str, zone: str) -> Object:
        return {"addresses": [address], "hints": {"forZones": [{"name": zone}]}}

    web = [service("web", "10.96.0.1"), endpoint_slice("web", endpoint("10.244.0.1", "a"), endpoint("10.244.0.2", "b"))]
    write(manifests, "web.json", *web)
    node.start("--manifests", manifests)
    for zone, places in (("", [1, 2]), ("a", [1]), ("b", [2]), ("c", [1, 2])):
        labels = {"topology.kubernetes.io/zone": zone} if zone else {}
        write(
            manifests,
            "node.json",
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME, "labels": labels}},
        )
        node.holds(web[0], endpoint_slice("web", *(f"10.244.0.{i}" for i in places)))


# Others change the ruleset, and the agent is killed.


@pytest.mark.parametrize(
    "command",
    [
        "flush ruleset",
        "delete table ip kube-proxy-nft",
        "flush chain ip6 kube-proxy-nft services",
        "insert rule ip kube-proxy-nft services drop",
        "delete element ip kube-proxy-nft cluster-ip-ports { 10.96.0.1 . tcp . 80 }",
        "delete element ip kube-proxy-nft endpoints { 10.96.0.1 . tcp . 80 . 1 }",
        "add element ip kube-proxy-nft endpoints { 10.96.0.1 . tcp . 80 . 2 : 192.0.2.1 . 9 }",
        "add element ip kube-proxy-nft cluster-ips { 192.0.2.1 }",
        "flush map ip kube-proxy-nft cluster-ip-ports; flush map ip kube-proxy-nft endpoints",
        "add set ip kube-proxy-nft theirs { type ipv4_addr; }",
        "add table ip kube-proxy-nft { flags dormant; }",
        "add element ip kube-proxy-nft cluster-ips { * }",
        "add chain ip kube-proxy-nft output { policy drop; }",
    ],
)
def test_what_others_do_is_undone_at_once(node: Node, manifests: Path, command: str) -> None:
    write(manifests, "web.json", *WEB, WEB6)
    node.start("--manifests", manifests, "--table-ownership=never")
    node.holds(*WEB, WEB6)
    before = [dict(table.chains) for table in node.tables() if table]
    eventually(lambda: node.watches, "the agent listens")
    node.namespace.nft(command)
    node.logged("tables_mended")
    node.holds(*WEB, WEB6)
    assert [dict(table.chains) for table in node.tables() if table] == before
    assert [event["by"].split()[0] for event in node.events("tables_mended")] == ["nft"]
    write(manifests, "other.json", service("other", "10.96.0.9"))
    node.holds(*WEB, WEB6, service("other", "10.96.0.9"))
    assert not node.events("transaction_refused")


def test_a_new_agent_takes_over_what_is_there(node: Node, manifests: Path) -> None:
    write(manifests, "web.json", *WEB, WEB6)
    node.start("--manifests", manifests, "--table-ownership=never")
    node.holds(*WEB, WEB6)
    node.stop()
    node.start("--manifests", manifests, "--table-ownership=never")
    node.logged("programmed", 2)
    [_, again] = node.events("programmed")
    assert (again["operations"], again["ip_differences"], again["ip6_differences"]) == (0, 0, 0)
    node.stop()
    node.namespace.nft("flush map ip kube-proxy-nft cluster-ip-ports")
    node.start("--manifests", manifests, "--table-ownership=never")
    node.holds(*WEB, WEB6)
    [*_, last] = node.events("programmed")
    assert (last["operations"], last["ip_differences"], last["ip6_differences"]) == (1, 1, 0)


def test_killed_and_started_again(node: Node, manifests: Path) -> None:
    write(manifests, "web.json", *WEB)
    node.start("--manifests", manifests)
    node.holds(*WEB)
    assert node.stop(signal.SIGKILL) == -signal.SIGKILL
    assert None not in node.tables()
    write(manifests, "web.json", *WEB, WEB6)
    node.start("--manifests", manifests)
    node.holds(*WEB, WEB6)


def test_a_second_agent_names_the_first_and_touches_nothing(node: Node, manifests: Path, tmp_path: Path) -> None:
    write(manifests, "web.json", *WEB)
    node.start("--manifests", manifests)
    node.holds(*WEB)
    assert node.process
    second = Node(node.namespace, tmp_path / "second.log")
    for arguments in (["run", "--manifests", str(manifests)], ["cleanup"], ["--cleanup"]):
        done = node.namespace.run(sys.executable, "-m", "proxy", *arguments)
        assert done.returncode == 9
        assert f"process {node.process.pid} (" in done.stderr
    node.holds(*WEB)
    node.stop()
    second.start("--manifests", manifests)
    second.holds(*WEB)
    second.stop()


# From an API server.


def start(node: Node, api: FakeApi) -> None:
    node.namespace.inside(api.start)


def test_objects_of_the_api_server_reach_the_kernel(node: Node, api: FakeApi, tmp_path: Path) -> None:
    for obj in WEB:
        api.put(obj)
    start(node, api)
    node.start("--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"))
    node.holds(*WEB)
    api.wait_for(api.watching)
    for obj in ALL_SORTS:
        api.put(obj)
    node.holds(*ALL_SORTS)
    for obj in ALL_SORTS[::2]:
        meta = obj["metadata"]
        api.delete(obj["kind"], meta.get("namespace", ""), meta["name"])
    node.holds(*ALL_SORTS[1::2])
    assert node.stop() == 0
    assert None not in node.tables()


def test_a_server_that_drops_forgets_and_goes_away(node: Node, api: FakeApi, tmp_path: Path) -> None:
    start(node, api)
    node.start("--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"))
    node.logged("programmed")
    api.wait_for(api.watching)
    objects: list[Object] = []

    def put(number: int) -> None:
        objects.append(service(f"s{number}", f"10.96.0.{number}"))
        api.put(objects[-1])

    put(1)
    node.holds(*objects)
    api.cut_watches()
    put(2)
    node.holds(*objects)
    api.wait_for(api.watching)
    with api._lock:  # what happens between the end of a watch and the next one is in no history
        api.end_watches()
        put(3)
        api.delete("Service", "default", "s1")
        objects.pop(0)
        api.compact()
    node.holds(*objects)
    assert node.events("watch_expired")
    before = node.tables()
    api.stop()
    node.logged("api_unreachable")
    put(4)
    api.delete("Service", "default", "s2")
    objects.pop(0)
    assert node.tables() == before
    start(node, api)
    node.holds(*objects)
    api.fail(503, times=4)
    api.cut_watches()
    put(5)
    node.holds(*objects)
    assert node.stop() == 0


def test_a_server_that_is_away_at_the_start_costs_nothing(node: Node, api: FakeApi, tmp_path: Path) -> None:
    for obj in WEB:
        api.put(obj)
    start(node, api)
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    node.start("--kubeconfig", kubeconfig)
    node.holds(*WEB)
    assert node.stop() == 0
    api.stop()
    before = node.namespace.nft("list", "ruleset")
    api.put(WEB6)
    node.start("--kubeconfig", kubeconfig)
    node.logged("api_unreachable")
    assert node.namespace.nft("list", "ruleset") == before
    start(node, api)
    node.holds(*WEB, WEB6)
    assert node.stop() == 0


def test_a_server_that_has_half_of_it_is_waited_for(node: Node, api: FakeApi, tmp_path: Path) -> None:
    for obj in WEB:
        api.put(obj)
    api.fail(403, kind="EndpointSlice", times=3, message="forbidden")
    start(node, api)
    node.start("--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"), "--once")
    assert node.process
    assert node.process.wait(PATIENCE) == 0
    node.process = None
    node.holds(*WEB)
    [event] = node.events("api_forbidden")
    assert "endpointslices" in event["remedy"]
    [programmed] = node.events("programmed")
    assert programmed["service_ports"] == 2


def test_bad_objects_of_the_api_server(node: Node, api: FakeApi, tmp_path: Path) -> None:
    bad = [service("address", "10.96.0.256"), service("port", "10.96.0.8", ports=[{"port": 70000}])]
    shapeless = {"kind": "Service", "metadata": {"name": "shapeless", "namespace": "default"}, "spec": {"ports": 80}}
    for obj in (*WEB, *bad, shapeless):
        api.put(obj)
    start(node, api)
    node.start("--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"))
    node.holds(*WEB)
    api.wait_for(api.watching)
    with api._lock:
        api.end_watches()
        api.put({"kind": "Node", "metadata": {"name": "other"}})
        api.put(WEB6)
        api.compact()
    node.holds(*WEB, WEB6)
    names = [event["object"].partition("/")[2] for event in node.events("object_left_out")]
    assert sorted(names) == ["address", "port", "shapeless"]
    api.put(service("shapeless", "10.96.0.7"))
    api.put(service("port", "10.96.0.8"))
    node.holds(*WEB, WEB6, service("shapeless", "10.96.0.7"), service("port", "10.96.0.8"))


def test_a_storm_of_changes_and_faults(node: Node, api: FakeApi, tmp_path: Path) -> None:
    start(node, api)
    node.start("--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"))
    node.logged("programmed")
    rand = random.Random(5)
    alive: dict[tuple[str, str], Object] = {}
    for step in range(1500):
        i = rand.randrange(30)
        pods = [f"10.244.{i}.{pod}" for pod in rand.sample(range(1, 200), rand.randrange(1, 9))]
        obj = rand.choice([service(f"s{i}", f"10.96.0.{i + 1}"), endpoint_slice(f"s{i}", *pods)])
        key = (obj["kind"], obj["metadata"]["name"])
        if rand.random() < 0.2:
            if alive.pop(key, None):
                api.delete(key[0], "default", key[1])
        else:
            alive[key] = obj
            api.put(obj)
        if step % 100 == 50:
            fault = rand.choice(["cut_watches", "end_watches", "compact", "fail"])
            getattr(api, fault)(*([500] if fault == "fail" else []))
    node.holds(*alive.values())
    assert not node.events("transaction_refused", "unexpected_failure")
