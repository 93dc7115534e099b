"""Rules as kube-proxy's nftables mode lays them out, for any objects, as a file for nft: to be read in tests.

Layouts: "1.36" (maps of addresses), "1.31" (a chain for each endpoint).
"""

from __future__ import annotations

from tests.dataplane_model import Place, Row
from tests.kube_proxy_ports import Port, cidrs, ports, short_hash
from tests.service_model import World


def nftables(world: World, version: int, *, layout: str = "1.36", detector: str = "", node_ports: str = "") -> str:
    """As a file for nft -f. detector: "ip saddr 10.244.0.0/16". node_ports: an address; "": all local ones."""
    return _Nftables(version, layout, detector, node_ports).text(world)


class _Nftables:
    def __init__(self, version: int, layout: str, detector: str, node_ports: str) -> None:
        self.version, self.layout, self.detector, self.node_ports = version, layout, detector, node_ports
        self.ip = "ip" if version == 4 else "ip6"
        self.lines: list[str] = []
        self.elements: dict[str, list[str]] = {}
        self.mark = "jump mark-for-masquerade" if layout == "1.31" else "meta mark set meta mark | 0x4000"

    def text(self, world: World) -> str:
        ip, address = self.ip, f"ipv{self.version}_addr"
        services = f"{address} . inet_proto . inet_service : verdict"
        for name, kind in (
            ("service-ips", services), ("no-endpoint-services", services), ("firewall-ips", services),
            ("service-nodeports", "inet_proto . inet_service : verdict"),
            ("no-endpoint-nodeports", "inet_proto . inet_service : verdict"),
        ):  # fmt: skip
            self.lines.append(f"map {name} {{ type {kind}; }}")
        self.lines.append(f"set cluster-ips {{ type {address}; }}")
        self.lines.append(f"set nodeport-ips {{ type {address}; }}")
        if self.node_ports:
            self.element("nodeport-ips", self.node_ports)
        to_node = (
            f"{ip} daddr @nodeport-ips"
            if self.node_ports
            else f"fib daddr type local {ip} daddr != {'127.0.0.0/8' if ip == 'ip' else '::1'}"
        )
        if self.layout == "1.31":
            self.chain("mark-for-masquerade", "meta mark set meta mark | 0x4000")
        self.chain("reject-chain", "reject")
        self.chain(
            "services",
            *(
                [f"{ip} daddr @cluster-ips {_negated(self.detector)} {self.mark}"]
                if self.detector and self.layout != "1.31"
                else []
            ),
            f"{ip} daddr . meta l4proto . th dport vmap @service-ips",
            f"{to_node} meta l4proto . th dport vmap @service-nodeports",
        )
        self.chain("checks", f"{ip} daddr . meta l4proto . th dport vmap @no-endpoint-services")
        checked = to_node.removeprefix("fib daddr type local ") if self.layout == "1.31" else to_node
        self.chain("nodeport-checks", f"{checked} meta l4proto . th dport vmap @no-endpoint-nodeports")
        self.chain("firewall-check", f"{ip} daddr . meta l4proto . th dport vmap @firewall-ips")
        self.chain(
            "masquerading",
            *(
                ["meta mark & 0x4000 == 0 return", "meta mark set meta mark ^ 0x4000", "masquerade fully-random"]
                if self.layout == "1.31"
                else ["meta mark & 0x4000 != 0 meta mark set meta mark ^ 0x4000 masquerade fully-random"]
            ),
        )
        for hook, priority in (("prerouting", -100), ("output", -100)):
            self.chain(f"nat-{hook}", f"type nat hook {hook} priority {priority}", "jump services")
        self.chain("nat-postrouting", "type nat hook postrouting priority 100", "jump masquerading")
        for hook in ("prerouting", "output"):
            self.chain(
                f"filter-{hook}-pre-dnat",
                f"type filter hook {hook} priority -110",
                "ct state new jump firewall-check",
            )
        self.chain(
            "filter-input",
            "type filter hook input priority 0",
            "ct state new jump nodeport-checks",
            "ct state new jump checks",
        )
        for hook in ("forward", "output"):
            self.chain(f"filter-{hook}", f"type filter hook {hook} priority 0", "ct state new jump checks")
        for port in ports(world, self.version):
            self.port(port)
        table = f"table {ip} kube-proxy {{\n" + "\n".join(self.lines) + "\n}\n"
        return table + "".join(
            f"add element {ip} kube-proxy {name} {{ {', '.join(found)} }}\n" for name, found in self.elements.items()
        )

    def chain(self, name: str, *rules: str) -> None:
        self.lines.append(f"chain {name} {{\n" + "".join(f"  {rule};\n" for rule in rules) + "}")

    def element(self, name: str, text: str) -> None:
        self.elements.setdefault(name, []).append(text)

    def port(self, port: Port) -> None:
        service = port.name if ":" in port.name else f"{port.name}:"
        base = f"{service.partition(':')[0]}/{port.protocol}/{service.partition(':')[2]}"
        name = f"{short_hash(8, base)}-{base}"
        by_end = self.layout == "1.31" or port.affinity
        chains = {end: f"endpoint-{short_hash(8, base, end)}-{base}__{_in_name(end)}" for end in port.ends()}
        if by_end:
            for end, chain in chains.items():
                self.endpoint(port, end, chain)
        for kind, ends in (("service", port.everywhere), ("local", port.here)):
            if ends:
                internal = [p for p, _ in port.places if p.kind == "clusterIP" and port.local(p) == (kind == "local")]
                self.balance(port, f"{kind}-{name}", {end: chains[end] for end in ends}, bool(by_end), internal)
        if port.ends() and port.external:
            self.external(port, name)
        for place, said in port.places:
            self.place(port, place, said, name)

    def place(self, port: Port, place: Place, said: Row, name: str) -> None:
        key = f"{port.protocol} . {place.number}"
        if place.kind != "nodePort":
            key = f"{place.address} . {key}"
        if place.kind == "clusterIP" and place.address not in self.elements.get("cluster-ips", ()):
            self.element("cluster-ips", place.address)
        chain = (
            f"external-{name}" if place.kind != "clusterIP" else f"{'local' if port.local(place) else 'service'}-{name}"
        )
        if said.inside or (said.outside and place.kind != "clusterIP"):
            self.element("service-nodeports" if place.kind == "nodePort" else "service-ips", f"{key} : goto {chain}")
        if refusal := said.outside_refusal or said.refusal:
            verdict = "goto reject-chain" if refusal == "reject" else "drop"
            where = "no-endpoint-nodeports" if place.kind == "nodePort" else "no-endpoint-services"
            self.element(where, f'{key} comment "{port.name}" : {verdict}')
        if said.sources is not None:
            if not any(f"chain firewall-{name} " in line for line in self.lines):
                self.chain(f"firewall-{name}", f"{self.ip} saddr != {{ {', '.join(cidrs(said.sources))} }} drop")
            self.element("firewall-ips", f'{key} comment "{port.name}" : goto firewall-{name}')

    def external(self, port: Port, name: str) -> None:
        rules = []
        if not port.local(port.external[0][0]):
            rules = [self.mark, f"goto service-{name}"]
        else:
            if self.detector:
                rules.append(f'{self.detector} goto service-{name} comment "short-circuit pod traffic"')
            rules += [f"fib saddr type local {self.mark}", f"fib saddr type local goto service-{name}"]
            if port.here:
                rules.append(f"goto local-{name}")
        self.chain(f"external-{name}", *rules)

    def balance(self, port: Port, chain: str, ends: dict[str, str], by_end: bool, internal: list[Place]) -> None:
        rules = []
        if self.layout == "1.31" and self.detector:
            rules += [
                f"{self.ip} daddr {p.address} {port.protocol} dport {p.number} {_negated(self.detector)} {self.mark}"
                for p in internal
            ]
        if port.affinity:
            rules += [f"{self.ip} saddr @affinity-{to[9:]} goto {to}" for to in ends.values()]
        if by_end:
            verdicts = ", ".join(f"{i} : goto {to}" for i, to in enumerate(ends.values()))
            rules.append(f"numgen random mod {len(ends)} vmap {{ {verdicts} }}")
        else:
            numbered = ", ".join(f"{i} : {_host(end)} . {_number(end)}" for i, end in enumerate(ends))
            rules.append(
                f"meta l4proto {port.protocol} dnat {self.ip} to numgen random mod {len(ends)} map {{ {numbered} }}"
            )
        self.chain(chain, *rules)

    def endpoint(self, port: Port, end: str, chain: str) -> None:
        rules = [f"{self.ip} saddr {_host(end)} {self.mark}"] if self.layout == "1.31" else []
        if port.affinity:
            timeout = f"flags dynamic, timeout; timeout {port.affinity}s;"
            self.lines.append(f"set affinity-{chain[9:]} {{ type ipv{self.version}_addr; size 65535; {timeout} }}")
            rules.append(f"update @affinity-{chain[9:]} {{ {self.ip} saddr }}")
        self.chain(chain, *rules, f"meta l4proto {port.protocol} dnat to {end}")


def _negated(detector: str) -> str:
    *words, value = detector.split()
    return " ".join([*words, "!=", value])


def _host(end: str) -> str:
    return end.rpartition(":")[0].strip("[]")


def _number(end: str) -> str:
    return end.rpartition(":")[2]


def _in_name(end: str) -> str:
    return f"{_host(end).replace(':', '.')}/{_number(end)}"
