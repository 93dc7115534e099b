"""Rules as kube-proxy's iptables mode lays them out, for any objects, as iptables-save's text: to be read in tests.

Layouts: "1.36", "1.26" (no rules for 127.0.0.0/8), "1.23" (KUBE-XLB-*, marks beside jumps).
"""

from __future__ import annotations

from tests.dataplane_model import Place, Row
from tests.kube_proxy_ports import Port, cidrs, ports, short_hash
from tests.service_model import World

MASK = {4: 32, 6: 128}


def iptables(world: World, version: int, *, layout: str = "1.36", detector: str = "", comments: bool = True) -> str:
    """detector: "-s 10.244.0.0/16". comments: as for fewer than 1,000 endpoints."""
    return _Iptables(version, layout, detector, comments).text(world)


class _Iptables:
    def __init__(self, version: int, layout: str, detector: str, comments: bool) -> None:
        self.version, self.layout, self.detector, self.comments = version, layout, detector, comments
        self.nat: dict[str, list[str]] = {"KUBE-SERVICES": [], "KUBE-NODEPORTS": [], "KUBE-POSTROUTING": []}
        self.filter: dict[str, list[str]] = {"KUBE-SERVICES": [], "KUBE-EXTERNAL-SERVICES": []}
        self.filter["KUBE-FORWARD"] = [
            "-m mark --mark 0x4000/0x4000 -j ACCEPT",
            "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        ]
        self.unreachable = "icmp-port-unreachable" if version == 4 else "icmp6-port-unreachable"
        if layout != "1.23":
            self.filter["KUBE-PROXY-FIREWALL"] = []

    def text(self, world: World) -> str:
        self.nat["KUBE-MARK-MASQ"] = ["-j MARK --set-xmark 0x4000/0x4000"]
        self.nat["KUBE-MARK-DROP"] = ["-j MARK --set-xmark 0x8000/0x8000"]
        self.nat["KUBE-POSTROUTING"] = [
            "-m mark ! --mark 0x4000/0x4000 -j RETURN",
            "-j MARK --set-xmark 0x4000/0x0",
            "-j MASQUERADE --random-fully",
        ]
        self.nat["PREROUTING"] = self.nat["OUTPUT"] = [
            '-m comment --comment "kubernetes service portals" -j KUBE-SERVICES'
        ]
        self.nat["POSTROUTING"] = ["-j KUBE-POSTROUTING"]
        firewall = ["-j KUBE-PROXY-FIREWALL"] if "KUBE-PROXY-FIREWALL" in self.filter else []
        self.filter["OUTPUT"] = [*firewall, "-j KUBE-SERVICES", "-j KUBE-EXTERNAL-SERVICES"]
        self.filter["FORWARD"] = ["-j KUBE-FORWARD", *self.filter["OUTPUT"]]
        self.filter["INPUT"] = [*firewall, "-j KUBE-EXTERNAL-SERVICES"]
        for port in ports(world, self.version):
            self.port(port)
        self.nat["KUBE-SERVICES"].append(
            '-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" '
            "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"
        )
        return "".join(
            f"*{name}\n{_chains(table)}COMMIT\n" for name, table in (("filter", self.filter), ("nat", self.nat))
        )

    def port(self, port: Port) -> None:
        names = {
            kind: f"KUBE-{kind}-{short_hash(16, port.name, port.protocol)}"
            for kind in ("SVC", "SVL", "EXT", "FW", "XLB")
        }
        for kind, ends in (("SVC", port.everywhere), ("SVL", port.here)):
            if ends:
                self.nat[names[kind]] = self.balance(port, ends)
        for end in port.ends():
            self.endpoint(port, end)
        if port.ends() and port.external:
            (self.old_external if self.layout == "1.23" else self.external)(port, names)
        for place, said in port.places:
            self.place(port, place, said, names)

    def place(self, port: Port, place: Place, said: Row, names: dict[str, str]) -> None:
        kind = {"clusterIP": "cluster IP", "externalIP": "external IP", "loadBalancer": "loadbalancer IP"}.get(
            place.kind, ""
        )
        suffix = f" {kind}" if kind else ""
        to = f"-d {place.address}/{MASK[self.version]} " if kind else ""
        match = f'{to}-p {port.protocol} -m comment --comment "{port.name}{{}}" {{}}-m {port.protocol} --dport {place.number}'
        chain = names["EXT"]
        if place.kind == "clusterIP":
            chain = names["SVL" if port.local(place) else "SVC"]
        elif self.layout == "1.23":
            chain = names["XLB" if port.local(place) else "SVC"]
        services = self.nat["KUBE-SERVICES" if kind else "KUBE-NODEPORTS"]
        if place.kind == "clusterIP" and said.inside and self.detector:
            masquerade = f"! {self.detector} {match.format(suffix, '')} -j KUBE-MARK-MASQ"
            (services if self.layout == "1.23" else self.nat[chain]).insert(0, masquerade)
        if said.sources is not None:
            chain = names["FW"]
            if self.layout != "1.23":
                said_of = f" traffic not accepted by {names['FW']}"
                self.filter["KUBE-PROXY-FIREWALL"].append(f"{match.format(said_of, '')} -j DROP")
        if said.inside or (said.outside and place.kind != "clusterIP"):
            if self.layout == "1.23" and place.kind in ("externalIP", "nodePort") and not port.local(place):
                services.append(f"{match.format(suffix, '')} -j KUBE-MARK-MASQ")
            if self.layout == "1.36" and place.kind == "nodePort" and self.version == 4:
                counted = "-m nfacct --nfacct-name  localhost_nps_accepted_pkts"
                services.append(f"-d 127.0.0.0/8 {match.format(suffix, '')} {counted} -j {chain}")
            if self.layout == "1.23" and place.kind == "loadBalancer" and said.sources is None:
                chain = names["FW"]
            services.append(f"{match.format(suffix, '')} -j {chain}")
        refusal = said.outside_refusal or said.refusal
        if refusal and not (self.layout == "1.23" and port.local(place) and said.inside):
            where = "KUBE-SERVICES" if place.kind == "clusterIP" else "KUBE-EXTERNAL-SERVICES"
            why = " has no endpoints" if refusal == "reject" else " has no local endpoints"
            local = "" if kind else "-m addrtype --dst-type LOCAL "
            target = f"REJECT --reject-with {self.unreachable}" if refusal == "reject" else "DROP"
            self.filter[where].append(f"{match.format(why, local)} -j {target}")

    def external(self, port: Port, names: dict[str, str]) -> None:
        rules = self.nat[names["EXT"]] = []
        if not port.local(port.external[0][0]):
            rules.append(
                f'-m comment --comment "masquerade traffic for {port.name} external destinations" -j KUBE-MARK-MASQ'
            )
            rules.append(f"-j {names['SVC']}")
        else:
            self.short_circuits(rules, names)
            if port.here:
                rules.append(f"-j {names['SVL']}")
        ranges = [said.sources for place, said in port.external if said.sources is not None]
        if ranges:
            of = f'-m comment --comment "{port.name} loadbalancer IP"'
            self.nat[names["FW"]] = [f"-s {cidr} {of} -j {names['EXT']}" for cidr in cidrs(ranges[0])] + [
                f'-m comment --comment "other traffic to {port.name} will be dropped by KUBE-PROXY-FIREWALL"'
            ]

    def old_external(self, port: Port, names: dict[str, str]) -> None:
        local = port.local(port.external[0][0])
        target = names["XLB" if local else "SVC"]
        if local:
            rules = self.nat[names["XLB"]] = []
            self.short_circuits(rules, names)
            if port.here:
                rules += self.balance(port, port.here)
            else:
                rules.append(f'-m comment --comment "{port.name} has no local endpoints" -j KUBE-MARK-DROP')
        firewalls = [said.sources for place, said in port.external if place.kind == "loadBalancer"]
        if firewalls:
            of = f'-m comment --comment "{port.name} loadbalancer IP"'
            rules = self.nat[names["FW"]] = [] if local else [f"{of} -j KUBE-MARK-MASQ"]
            sources = [""] if firewalls[0] is None else [f"-s {cidr} " for cidr in cidrs(firewalls[0])]
            rules += [f"{source}{of} -j {target}" for source in sources] + [f"{of} -j KUBE-MARK-DROP"]

    def short_circuits(self, rules: list[str], names: dict[str, str]) -> None:
        if self.detector:
            rules.append(f"{self.detector} -j {names['SVC']}")
        rules.append("-m addrtype --src-type LOCAL -j KUBE-MARK-MASQ")
        rules.append(f"-m addrtype --src-type LOCAL -j {names['SVC']}")

    def balance(self, port: Port, ends: list[str]) -> list[str]:
        rules = []
        comment = f'-m comment --comment "{port.name} -> {{}}" ' if self.comments else ""
        chains = {end: f"KUBE-SEP-{short_hash(16, port.name, port.protocol, end)}" for end in ends}
        mask = "255.255.255.255" if self.version == 4 else "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
        if port.affinity:
            rules += [
                f"{comment.format(end)}-m recent --rcheck --seconds {port.affinity} --reap --name {chain} --mask {mask} "
                f"--rsource -j {chain}"
                for end, chain in chains.items()
            ]
        for number, (end, chain) in enumerate(chains.items()):
            left = len(ends) - number
            chance = f"-m statistic --mode random --probability {1 / left:.11f} " if left > 1 else ""
            rules.append(f"{comment.format(end)}{chance}-j {chain}")
        return rules

    def endpoint(self, port: Port, end: str) -> None:
        chain = f"KUBE-SEP-{short_hash(16, port.name, port.protocol, end)}"
        comment = f'-m comment --comment "{port.name}" ' if self.comments else ""
        host = end.rpartition(":")[0].strip("[]")
        mask = "255.255.255.255" if self.version == 4 else "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
        recent = f"-m recent --set --name {chain} --mask {mask} --rsource " if port.affinity else ""
        self.nat[chain] = [
            f"-s {host}/{MASK[self.version]} {comment}-j KUBE-MARK-MASQ",
            f"-p {port.protocol} {comment}{recent}-m {port.protocol} -j DNAT --to-destination {end}",
        ]


def _chains(table: dict[str, list[str]]) -> str:
    declared = "".join(f":{name} {'-' if name.startswith('KUBE-') else 'ACCEPT'} [0:0]\n" for name in table)
    return declared + "".join(f"-A {name} {rule}\n" for name, rules in table.items() for rule in rules)
