"""Checks of the node and of its configuration: what makes each speak, and the nearest case in which it is silent."""

from __future__ import annotations

from proxy.detect.evidence import ConfiguredMode, KubeTables, OtherProxy, Place, ServedMode
from proxy.migrate.facts import BaseChain, ForwardFilter, Listener, MarkUse, NodeFacts
from tests.migrate_cases import FILE, V4, V6, WEB, Row, balanced, here, packed, running, told, unlisted
from tests.migrate_facts import facts

NODE_ROWS: list[Row] = [
    # The node.
    Row(
        "elsewhere",
        "change",
        "another machine",
        lambda: facts(*WEB, here=NodeFacts(is_this_node=False, kernel="6.1.0")),
        lambda: facts(*WEB, here=here()),
    ),
    Row(
        "forward-filter",
        "blocker",
        "every table",
        lambda: facts(*WEB, mode="ipvs", here=here(forward=(ForwardFilter("chain inet mine fwd", "no", apart=True),))),
        lambda: facts(
            *WEB, mode="iptables", here=here(forward=(ForwardFilter("chain inet mine fwd", "no", apart=True),))
        ),
    ),
    Row(
        "forward-filter",
        "notice",
        "today as well",
        lambda: facts(
            *WEB, mode="iptables", here=here(forward=(ForwardFilter("chain inet mine fwd", "no", apart=True),))
        ),
        lambda: facts(
            *WEB, mode="iptables", here=here(forward=(ForwardFilter("chain inet mine fwd, ip6", "no", apart=True),))
        ),
    ),
    Row(
        "kernel",
        "blocker",
        "5.10",
        lambda: facts(*WEB, here=NodeFacts(kernel="5.10.0-28-amd64")),
        lambda: facts(*WEB, here=NodeFacts(kernel="5.13.0")),
    ),
    Row(
        "kernel-features",
        "blocker",
        "CONFIG_NFT_NUMGEN",
        lambda: facts(*WEB, here=here(missing_features=("CONFIG_NFT_NUMGEN",))),
        lambda: facts(*WEB, here=here()),
    ),
    Row(
        "forward-filter",
        "blocker",
        "chain ip filter FORWARD",
        lambda: facts(*WEB, mode="ipvs", here=here(forward=(ForwardFilter("chain ip filter FORWARD", "no"),))),
        lambda: facts(
            *WEB, mode="ipvs", here=here(forward=(ForwardFilter("chain ip filter FORWARD", "yes", ("-j ACCEPT",)),))
        ),
    ),
    Row(
        "forward-filter",
        "change",
        "may drop",
        lambda: facts(
            *WEB,
            mode="iptables",
            here=here(forward=(ForwardFilter("chain ip filter FORWARD", "unknown", ("-i cni0",)),)),
        ),
        lambda: facts(*WEB, mode="iptables", here=here()),
    ),
    Row(
        "forward-filter",
        "notice",
        "today as well",
        lambda: facts(*WEB, mode="nftables", here=here(forward=(ForwardFilter("chain ip filter FORWARD", "no"),))),
        lambda: facts(*WEB, mode="nftables", here=here()),
    ),
    Row(
        "forward-filter",
        "blocker",
        "KUBE-FORWARD",
        lambda: facts(*WEB, mode="ipvs", here=here(forward=(ForwardFilter("chain inet firewall forward", "no"),))),
        lambda: facts(*WEB, mode="ipvs", here=here(forward=(ForwardFilter("chain ip6 filter FORWARD", "no"),))),
    ),
    Row(
        "forward-filter",
        "info",
        "could not be told",
        lambda: facts(*WEB, mode="nftables", here=here(forward=(ForwardFilter("chain ip filter FORWARD", "unknown"),))),
        lambda: facts(*WEB, mode="ipvs", here=here(forward=(ForwardFilter("chain ip filter FORWARD", "unknown"),))),
    ),
    Row(
        "conntrack",
        "change",
        "full",
        lambda: facts(*WEB, here=here(conntrack_count=99, conntrack_max=100)),
        lambda: facts(*WEB, here=here(conntrack_count=10, conntrack_max=100)),
    ),
    Row(
        "conntrack",
        "notice",
        "filling up",
        lambda: facts(*WEB, here=here(conntrack_count=80, conntrack_max=100)),
        lambda: facts(*WEB, here=here(conntrack_count=80, conntrack_max=0)),
    ),
    Row(
        "ip-forward",
        "change",
        "IPv4",
        lambda: facts(*WEB, here=here(sysctls={"net/ipv4/ip_forward": "0"})),
        lambda: facts(*WEB, here=here(sysctls={"net/ipv6/conf/all/forwarding": "0"})),
    ),
    Row(
        "ip-forward",
        "info",
        "every start",
        lambda: facts(*WEB, mode="ipvs", here=here(sysctls={"net/ipv4/ip_forward": "1"})),
        lambda: facts(*WEB, mode="iptables", here=here(sysctls={"net/ipv4/ip_forward": "1"})),
    ),
    Row(
        "mark-collision",
        "change",
        "0x4000",
        lambda: facts(*WEB, here=here(marks=(MarkUse("table ip mangle", 0xFFFF0000 | 0x4000, "calico"),))),
        lambda: facts(*WEB, here=here(marks=(MarkUse("table ip mangle", 0xFFFF0000, "calico"),))),
    ),
    Row(
        "mark-collision",
        "notice",
        "today as well",
        lambda: running(*WEB, mode="iptables", mark=0x4000, here=here(marks=(MarkUse("x", 0x4000, "weave"),))),
        lambda: running(*WEB, mode="iptables", mark=0x4000, here=here(marks=(MarkUse("x", 0x4000, "kube-proxy"),))),
    ),
    Row(
        "mark-collision",
        "notice",
        "today as well",
        lambda: facts(*WEB, mode="ipvs", here=here(marks=(MarkUse("x", 0x4000, "weave"),))),
        lambda: facts(
            *WEB,
            mode="ipvs",
            config={"iptables": {"masqueradeBit": 15}},
            here=here(marks=(MarkUse("x", 0x4000, "weave"),)),
        ),
    ),
    Row(
        "mark-collision",
        "change",
        "0x4000 of connections",
        lambda: running(*WEB, mode="iptables", mark=0x4000, here=here(marks=(MarkUse("x", 0x4000, "", True),))),
        lambda: running(*WEB, mode="iptables", mark=0x4000, here=here(marks=(MarkUse("x", 0x80, "", True),))),
    ),
    Row(
        "mark-collision",
        "change",
        "all of a connection's mark",
        lambda: facts(*WEB, here=here(marks=(MarkUse("chain inet mine pre", 0xFFFFFFFF, "", True),))),
        lambda: facts(*WEB, here=here(marks=(MarkUse("chain inet mine pre", 0xFFFFBFFF, "", True),))),
    ),
    Row(
        "nat-priority",
        "info",
        "chain ip nat OUTPUT",
        lambda: facts(
            mode="iptables",
            here=here(chains=(BaseChain("ip", "nat", "OUTPUT", "nat", "output", -100, rules=2, program="iptables"),)),
        ),
        lambda: facts(
            mode="iptables",
            here=here(chains=(BaseChain("ip", "nat", "OUTPUT", "nat", "output", -100, rules=1, program="iptables"),)),
        ),
    ),
    Row(
        "nat-priority",
        "info",
        "docker",
        lambda: facts(
            here=here(
                chains=(BaseChain("ip", "nat", "PREROUTING", "nat", "prerouting", -100, rules=3, program="docker"),)
            )
        ),
        lambda: facts(
            here=here(
                chains=(
                    BaseChain("ip", "nat", "PREROUTING", "nat", "prerouting", -100, rules=3, program="kube-proxy"),
                    BaseChain("ip", "nat", "PREROUTING", "nat", "prerouting", -90, program="firewalld"),
                )
            )
        ),
    ),
    Row(
        "proxy-ports",
        "change",
        "10256/TCP: nginx",
        lambda: facts(here=here(listeners=(Listener("TCP", V6, 10256, "nginx"),))),
        lambda: facts(
            here=here(
                listeners=(Listener("TCP", packed("127.0.0.2")[0], 10249, "nginx"), Listener("UDP", V4, 10256, "x"))
            )
        ),
    ),
    Row(
        "proxy-ports",
        "info",
        "kube-proxy",
        lambda: facts(here=here(listeners=(Listener("TCP", V6, 10256, "kube-proxy"),))),
        lambda: facts(
            config={"healthzBindAddress": "0.0.0.0:10999"},
            here=here(listeners=(Listener("TCP", V6, 10256, "kube-proxy"),)),
        ),
    ),
    Row(
        "health-check-ports",
        "change",
        "31000/TCP, taken by nginx",
        lambda: facts(
            balanced(externalTrafficPolicy="Local", healthCheckNodePort=31000),
            here=here(listeners=(Listener("TCP", V4, 31000, "nginx"),)),
        ),
        lambda: facts(
            balanced(externalTrafficPolicy="Local", healthCheckNodePort=31000),
            here=here(listeners=(Listener("TCP", V4, 31000, "kube-proxy"),)),
        ),
    ),
    Row(
        "node-missing",
        "change",
        "There is no Node node0",
        lambda: facts(*WEB, node=None),
        lambda: facts(*WEB),
    ),
    Row(
        "node-missing",
        "change",
        "The Node node0 could not be read",
        lambda: unlisted(facts(*WEB, node=None), "Node"),
        lambda: facts(*WEB),
    ),
    # The configuration.
    Row("config-refused", "blocker", "clusterCIDR", lambda: facts(config={"clusterCIDR": "nonsense"}), lambda: facts()),
    Row("config-unknown", "change", "not known", lambda: facts(config={}, source=""), lambda: facts(config={})),
    Row(
        "masquerade-bit",
        "change",
        "15",
        lambda: facts(mode="ipvs", config={"iptables": {"masqueradeBit": 15}}),
        lambda: facts(mode="ipvs", config={"iptables": {"masqueradeBit": 15}, "nftables": {"masqueradeBit": 15}}),
    ),
    Row(
        "masquerade-bit",
        "change",
        "15",
        lambda: facts(mode="iptables", config={"iptables": {"masqueradeBit": 15}}),
        lambda: facts(mode="nftables", config={"iptables": {"masqueradeBit": 15}}),
    ),
    Row(
        "masquerade-all",
        "change",
        "masqueradeAll",
        lambda: facts(mode="ipvs", config={"iptables": {"masqueradeAll": True}}),
        lambda: facts(mode="ipvs", config={"iptables": {"masqueradeAll": True}, "nftables": {"masqueradeAll": True}}),
    ),
    Row("config-doubtful", "notice", "clusterCIDR", lambda: facts(config={"mode": "ipvs"}), lambda: facts()),
    Row(
        "config-without-effect",
        "info",
        "portRange",
        lambda: facts(config={"portRange": "1-2"}),
        lambda: facts(mode="ipvs", config={"ipvs": {"scheduler": "rr", "strictARP": True}}),
    ),
    Row(
        "config-without-effect",
        "info",
        "featureGates",
        lambda: facts(config={"featureGates": {"AllAlpha": True}}),
        lambda: facts(),
    ),
    Row(
        "config-unknown-fields",
        "notice",
        "unknown field",
        lambda: facts(config={"clusterCidr": "10.0.0.0/8"}),
        lambda: facts(),
    ),
    # The detector's.
    Row(
        "ipvs-mode",
        "notice",
        "KEP-5495",
        lambda: told(ConfiguredMode(place=FILE, mode="ipvs")),
        lambda: told(ConfiguredMode(place=FILE, mode="nftables")),
    ),
    Row(
        "mode-unset",
        "notice",
        "mode",
        lambda: told(ConfiguredMode(place=FILE, mode="")),
        lambda: told(ConfiguredMode(place=FILE, mode="iptables")),
    ),
    Row(
        "two-proxies",
        "change",
        "cilium",
        lambda: told(OtherProxy(place=FILE, program="cilium"), ServedMode(place=FILE, mode="ipvs")),
        lambda: told(ServedMode(place=FILE, mode="ipvs")),
    ),
    Row(
        "nftables-leftover",
        "change",
        "left",
        lambda: told(
            ServedMode(place=FILE, mode="iptables"),
            KubeTables(place=Place("nftables", "ip kube-proxy", node="node0"), owner="kube-proxy", chains=9),
        ),
        lambda: told(
            ServedMode(place=FILE, mode="nftables"),
            KubeTables(place=Place("nftables", "ip kube-proxy", node="node0"), owner="kube-proxy", chains=9),
        ),
    ),
]
