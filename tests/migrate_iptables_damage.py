"""Damage done to the recorded rules of iptables mode, each with the addresses that it is about."""

from __future__ import annotations

from tests.dataplanes import recorded

IP4 = recorded("iptables", "iptables-save.txt")


def line_with(*words: str) -> str:
    """The one line of the recording that has all these words, its end included."""
    lines = [line for line in IP4.splitlines(keepends=True) if all(word in line for word in words)]
    assert len(lines) == 1, lines
    return lines[0]


def chain_of(comment: str, kind: str) -> str:
    """The chain KUBE-<kind>-* that a rule with this comment names."""
    names = {
        word
        for line in IP4.splitlines()
        if f'"{comment}' in line
        for word in line.split()
        if word.startswith(f"KUBE-{kind}-")
    }
    assert len(names) == 1, names
    return names.pop()


WEB, LOCAL, RANGES = "10.96.30.1:80/TCP", "NodePort 30103/TCP IPv4", "198.51.100.31:443/TCP"
STICKY, EMPTY = "10.96.30.9:80/TCP", "10.96.30.10:80/TCP"
OF_LOCAL = {LOCAL}


def damage_endpoint_goes() -> tuple[str, set[str]]:
    return IP4.replace(line_with("KUBE-SVC-A7H36EAONPX5U2SX", "-> 10.244.0.3:8080"), ""), {WEB}


def damage_last_endpoint_goes() -> tuple[str, set[str]]:
    return IP4.replace(line_with("KUBE-SVC-A7H36EAONPX5U2SX", "-> 10.244.1.3:8080"), ""), {WEB}


def damage_stale_destination() -> tuple[str, set[str]]:
    return IP4.replace(
        line := line_with("default/web:p80tcp", "DNAT", "10.244.0.3:8080"), line.replace("10.244.0.3", "10.244.9.9")
    ), {WEB}


def damage_stale_endpoint_added() -> tuple[str, set[str]]:
    line = line_with("KUBE-SVC-A7H36EAONPX5U2SX", "-> 10.244.1.3:8080")
    return IP4.replace(
        line,
        "[0:0] -A KUBE-SVC-A7H36EAONPX5U2SX -m statistic --mode random --probability 0.1 -j KUBE-SEP-4MSQ5TQNL3KHY34A\n"
        + line,
    ), {WEB}


def damage_stale_endpoint_behind_the_last() -> tuple[str, set[str]]:
    line = line_with("KUBE-SVC-A7H36EAONPX5U2SX", "-> 10.244.1.3:8080")
    return IP4.replace(line, line + "[0:0] -A KUBE-SVC-A7H36EAONPX5U2SX -j KUBE-SEP-4MSQ5TQNL3KHY34A\n"), {WEB}


def damage_another_port() -> tuple[str, set[str]]:
    return IP4.replace(
        line := line_with("default/web:p80tcp", "DNAT", "10.244.0.3:8080"), line.replace(":8080", ":8081")
    ), {WEB}


def damage_service_goes() -> tuple[str, set[str]]:
    return IP4.replace(line_with("-A KUBE-SERVICES", "default/web:p80tcp cluster IP"), ""), {WEB}


def damage_unknown_service() -> tuple[str, set[str]]:
    line = line_with("-A KUBE-SERVICES", "default/web:p80tcp cluster IP")
    added = line.replace("10.96.30.1/32", "10.96.77.7/32").replace("default/web", "default/gone")
    return IP4.replace(line, line + added), {"10.96.77.7:80/TCP"}


def damage_refusal_goes() -> tuple[str, set[str]]:
    return IP4.replace(line_with("-A KUBE-SERVICES", "REJECT"), ""), {EMPTY}


def damage_refused_otherwise() -> tuple[str, set[str]]:
    line = line_with("-A KUBE-SERVICES", "REJECT")
    return IP4.replace(line, line.replace("REJECT --reject-with icmp-port-unreachable", "DROP")), {EMPTY}


def damage_refused_for_one_client_only() -> tuple[str, set[str]]:
    line = line_with("-A KUBE-SERVICES", "REJECT")
    return IP4.replace(line, line.replace("KUBE-SERVICES -d", "KUBE-SERVICES -s 10.9.9.9/32 -d")), {EMPTY}


def damage_service_for_one_client_only() -> tuple[str, set[str]]:
    line = line_with("-A KUBE-SERVICES", "default/web:p80tcp cluster IP")
    return IP4.replace(line, line.replace("KUBE-SERVICES -d", "KUBE-SERVICES -s 10.9.9.9/32 -d")), {WEB}


def damage_external_for_one_port_only() -> tuple[str, set[str]]:
    line = line_with("-A KUBE-EXT-P5RLDULGQRL7K2WN -j")
    changed = line.replace("-j", "-p tcp -m tcp --dport 99 -j")
    return IP4.replace(line, changed), {"192.0.2.30:80/TCP"}


def damage_node_port_refusal_goes() -> tuple[str, set[str]]:
    return IP4.replace(line_with("has no local endpoints"), ""), {"NodePort 30104/TCP IPv4"}


def damage_affinity_goes() -> tuple[str, set[str]]:
    lines = [line for line in IP4.splitlines(keepends=True) if "--rcheck" not in line]
    return "".join(lines), {STICKY}


def damage_affinity_of_one_endpoint_goes() -> tuple[str, set[str]]:
    return IP4.replace(line_with("--rcheck", "-> 10.244.1.2:8080"), ""), {STICKY}


def damage_affinity_is_not_remembered() -> tuple[str, set[str]]:
    line = line_with("--set", "DNAT", "10.244.1.3:8080")
    return IP4.replace(line, line[: line.index(" -m recent")] + line[line.index(" -m tcp") :]), {STICKY}


def damage_another_timeout() -> tuple[str, set[str]]:
    return IP4.replace("--seconds 3600", "--seconds 60"), {STICKY}


def damage_source_range_goes() -> tuple[str, set[str]]:
    return IP4.replace(line_with("-A KUBE-FW-", "203.0.113.0/24"), ""), {RANGES}


def damage_source_range_grows() -> tuple[str, set[str]]:
    line = line_with("-A KUBE-FW-", "203.0.113.0/24")
    return IP4.replace(line, line.replace("203.0.113.0/24", "203.0.0.0/16")), {RANGES}


def damage_firewall_is_passed_by() -> tuple[str, set[str]]:
    line = line_with("-A KUBE-SERVICES", "default/lb-ranges:p443tcp loadbalancer IP")
    return IP4.replace(line, line.replace("KUBE-FW-", "KUBE-EXT-")), {RANGES}


def damage_everybody_passes_the_firewall() -> tuple[str, set[str]]:
    line = line_with("-A KUBE-FW-", "will be dropped")
    return IP4.replace(line, line.replace("\n", " -j KUBE-EXT-XNSRSQRUMO72ZEPB\n")), {RANGES}


def damage_service_chain_is_swapped() -> tuple[str, set[str]]:
    line = line_with("-A KUBE-SERVICES", "default/web:p80tcp cluster IP")
    return IP4.replace(
        line, line.replace("KUBE-SVC-A7H36EAONPX5U2SX", chain_of("default/ext:p80tcp cluster IP", "SVC"))
    ), {WEB}


def damage_policy_becomes_cluster() -> tuple[str, set[str]]:
    line = line_with("-A KUBE-EXT-55C4DQP3ZP53ZJY5 -j KUBE-SVL-55C4DQP3ZP53ZJY5")
    return IP4.replace(line, line.replace("KUBE-SVL", "KUBE-SVC")), OF_LOCAL


def damage_pods_do_not_get_all_endpoints() -> tuple[str, set[str]]:
    return IP4.replace(line_with('-m comment --comment "pod traffic for default/np-local:p80tcp'), ""), OF_LOCAL


def damage_node_does_not_get_all_endpoints() -> tuple[str, set[str]]:
    return IP4.replace(line_with('"route LOCAL traffic for default/np-local:p80tcp'), ""), OF_LOCAL


def damage_other_pods_are_meant() -> tuple[str, set[str]]:
    line = line_with('-m comment --comment "pod traffic for default/np-local:p80tcp')
    return IP4.replace(line, line.replace("10.244.0.0/16", "10.0.0.0/8")), OF_LOCAL


def damage_masquerading_goes() -> tuple[str, set[str]]:
    return IP4.replace(line_with('"masquerade traffic for default/lb:p443tcp'), ""), {
        "198.51.100.30:443/TCP",
        "NodePort 30105/TCP IPv4",
    }


def damage_everything_is_masqueraded() -> tuple[str, set[str]]:
    line = line_with('"masquerade LOCAL traffic for default/np-local:p80tcp')
    return IP4.replace(line, line.replace("-m addrtype --src-type LOCAL ", "")), OF_LOCAL


def damage_node_port_goes() -> tuple[str, set[str]]:
    return IP4.replace(line_with("-A KUBE-NODEPORTS -p tcp", '"default/lb:p443tcp"'), ""), {"NodePort 30105/TCP IPv4"}


DAMAGES = [value for name, value in list(globals().items()) if name.startswith("damage_")]
NOT_UNDERSTOOD = (
    damage_refused_for_one_client_only,
    damage_service_for_one_client_only,
    damage_external_for_one_port_only,
    damage_other_pods_are_meant,
)
"""With rules that kube-proxy does not write."""
