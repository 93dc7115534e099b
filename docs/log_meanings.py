"""What the log's events and the Events on the Node mean, and what to do about them: all that docs/events.md has which no code
says. Events that one piece of code names after what it serves stand together."""

from __future__ import annotations

from typing import Final, NamedTuple


class Meaning(NamedTuple):
    """do: beyond what the event's own `remedy` says. more: fields that the code puts together at run time."""

    about: str
    do: str = ""
    more: tuple[str, ...] = ()


SECTIONS: Final[dict[str, dict[str, Meaning]]] = {
    "Start and end": {
        "starting": Meaning("`run` begins. `source`: `API server` or the directory of manifests"),
        "ended": Meaning("by a signal, or because the configuration changed (exit code 8)"),
        "failed": Meaning(
            "a command cannot go on: what, why and what to do, in one line", "[exit codes](configuration.md#exit-codes)"
        ),
        "unexpected_failure": Meaning("a bug: `exception` has the traceback", "report it; the rules stay meanwhile"),
        "instance_name_taken": Meaning("a process of another user has the name by which agents find each other"),
        "privileges_dropped": Meaning("the capabilities that are left"),
        "privilege_not_dropped": Meaning(
            "the system does not let the agent give this up", "nothing: it works as it is"
        ),
        "oom_score_set": Meaning("`oomScoreAdj` is in force"),
        "oom_score_not_set": Meaning("`oomScoreAdj` is not; info: as good as the kubelet gives anybody"),
        "ip_family_left_out": Meaning("this node lacks something that one IP family needs"),
        "cleaned_up": Meaning("`cleanup`: these tables are not there any more, whether they were or not"),
    },
    "Configuration": {
        "flags_ignored": Meaning("these are set by the file"),
        "flag_deprecated": Meaning("upstream wants another one used"),
        "flag_without_effect": Meaning(
            "it is one of kube-proxy's, and means nothing here; warning: it asks for another mode"
        ),
        "config_field_unknown": Meaning(
            "kube-proxy has no such field", "correct its spelling; until then it is left out"
        ),
        "config_field_without_effect": Meaning("the same of a field"),
        "config_field_doubtful": Meaning("`config check`: it can be read, and may not do what is meant"),
        "config_written": Meaning("`--write-config-to` is done"),
        "config_file_changed": Meaning("the agent ends with exit code 8, for its pod to start again"),
        "config_file_wrong": Meaning(
            "the file changed, and cannot be used any more", "correct it before the next start"
        ),
        "config_file_lost": Meaning("the file is gone, or cannot be read"),
        "configuration_doubtful": Meaning("what is configured does not go with what the Node says (families, ranges)"),
        "sysctl_set": Meaning("a conntrack setting was changed, as kube-proxy does"),
        "sysctl_not_set": Meaning("it could not be: mostly a read-only /proc/sys"),
    },
    "The rules": {
        "programmed": Meaning(
            "everything is in the kernel: the first commit, or one after the tables had to be compared as a whole. "
            "`ip_differences`, `ip6_differences`: what an earlier agent's table had otherwise",
            more=("ip_differences", "ip6_differences"),
        ),
        "committed": Meaning("a change is in the kernel. With `--log-level debug` only"),
        "transaction_refused": Meaning(
            "the kernel refused a change, and nothing of it was done. `then`: what the agent does now, `seconds`: when",
            "[KubeProxyNftSyncFailing](operate.md#kubeproxynftsyncfailing), [what the kernel may refuse](refusals.md)",
        ),
        "transactions_work_again": Meaning("after `refused` of them"),
        "tables_mended": Meaning(
            "others changed our tables, and it was undone. `by`: which program, where the kernel told",
            "[KubeProxyNftRepairsRepeating](operate.md#kubeproxynftrepairsrepeating)",
        ),
        "tables_audited": Meaning("the look at the tables that comes every five minutes"),
        "audit_failed": Meaning("the tables could not be read", "nothing, unless it repeats"),
        "table_not_adopted": Meaning(
            "a table that was found is replaced in one transaction instead of being kept: session affinity begins anew"
        ),
        "tables_not_owned": Meaning("anybody with the privilege may change the tables; it is undone when it happens"),
        "standby_ready": Meaning(
            "on kernels before 6.9: a second table, which nobody else can change, holds the same; it answers before and "
            "after ours, so that what others do to ours costs nothing while it is undone"
        ),
        "standby_failed": Meaning(
            "it could not be kept, and is built anew; warning: the first time within ten minutes",
            "nothing, unless it repeats: [KubeProxyNftStandbyMissing](operate.md#kubeproxynftstandbymissing)",
        ),
        "standby_removed": Meaning("one that no agent keeps any more was found, and removed"),
        "standby_not_removed": Meaning(
            "it could not be", "`nft delete table`: it would go on to lead connections to where Services once were"
        ),
        "tables_not_watched": Meaning("the kernel does not tell of others' changes: they are found by the next audit"),
        "service_port_refused": Meaning(
            "the kernel does not take this service port; it is left out, all others work. `service_port`: "
            "namespace/name:port",
            "[KubeProxyNftServicePortsRefused](operate.md#kubeproxynftserviceportsrefused)",
        ),
        "service_ports_refused": Meaning("`more` of them at once than the log names"),
        "service_port_taken": Meaning("the kernel takes it again"),
        "service_ports_taken": Meaning("`more` of them at once than the log names"),
        "object_left_out": Meaning(
            "a Service, EndpointSlice, Node or ServiceCIDR (or a part of it, as `reason` says) cannot be used, or an older "
            "Service has the address that it claims. Once for each object and reason"
        ),
        "waiting_for_pod_cidrs": Meaning("nothing is programmed before: the rules in the kernel stay as they are"),
    },
    "The node": {
        "node_known": Meaning("what of the Node counts: addresses, pod CIDRs, zone"),
        "node_not_found": Meaning("there is no Node of this name"),
        "node_deleted": Meaning("the Node was there, and is not any more"),
        "node_without_ip": Meaning("without an address there are no NodePorts (`nodePortAddresses: primary`)"),
        "node_eligible": Meaning("load balancers may use this node again"),
        "node_not_eligible": Meaning("load balancers are told to leave this node alone (KEP-3836)"),
        "address_messages_missed": Meaning("interfaces changed faster than the kernel could tell"),
        "addresses_unreadable": Meaning("this node's addresses cannot be read; those known stay in use"),
        "addresses_stopped": Meaning("a bug; the agent ends with exit code 1"),
        "nat_neighbour": Meaning(
            "somebody else has nat chains at our hooks and priorities; warning: it is kube-proxy, or nobody known",
            more=("family", "table", "chains", "used_by"),
        ),
        "nat_neighbours_too_many": Meaning("somebody makes ever new ones"),
        "nat_neighbours_not_read": Meaning("the kernel did not list them"),
        "deprecation_found": Meaning(
            "something that [`detect`](detect.md) finds on this node; info: a notice",
            "[KubeProxyNftDeprecation](operate.md#kubeproxynftdeprecation)",
            ("kep", "mode", "source", "check", "severity", "breaks_in"),
        ),
        "deprecation_gone": Meaning(
            "it is not there any more", more=("kep", "mode", "source", "check", "severity", "breaks_in")
        ),
        "deprecation_watch_failed": Meaning("a bug in the look for it; it is tried again"),
        "server_version_unknown": Meaning("the API server does not tell its version: findings are judged without it"),
    },
    "The API server": {
        "api_source_started": Meaning("lists and watches begin"),
        "api_list_done": Meaning("all objects of `kind` are known. `mode`: how they came"),
        "api_server_changed": Meaning("another of several servers answers"),
        "api_certificate_not_verified": Meaning("as the kubeconfig says"),
        "api_credentials_not_refreshed": Meaning("a token, certificate or CA cannot be read anew"),
        "no_streaming_list": Meaning("this server has no streaming lists: plain ones from its cache are used"),
        "watch_works_again": Meaning("after one of the following"),
        "api_unreachable watch_broken watch_silent api_refused": Meaning(
            "no answer; an answer that broke off; none for 150 s (debug: at the end of a quiet watch); an error by HTTP. Once "
            "for each cause; `pause`: seconds to the next try",
            "[KubeProxyNftWatchStale](operate.md#kubeproxynftwatchstale)",
            ("remedy",),
        ),
        "api_unauthorized api_forbidden": Meaning("the account is not known, or lacks a right", more=("remedy",)),
        "api_nonsense": Meaning("what answers is no Kubernetes API server", more=("remedy",)),
        "api_resource_missing": Meaning("the server does not have this kind", more=("remedy",)),
        "watch_expired api_server_behind": Meaning(
            "the server does not have the version that was asked for any more, or not yet: a list follows",
            more=("remedy",),
        ),
        "node_event_lost node_events_limited": Meaning(
            "Events on the Node that were not taken, or too many to send; `reason`, `note`: which", more=("remedy",)
        ),
        "node_events_forbidden": Meaning("the account may not write Events", more=("remedy",)),
        "node_events_ended": Meaning("a bug; there are no more Events, all else works"),
    },
    "Manifests": {
        "manifest_broken": Meaning("a file cannot be read; its last good objects stay in use"),
        "manifest_mended": Meaning("it can be read again"),
        "manifest_empty": Meaning("a file without objects"),
        "manifest_kinds_ignored": Meaning("objects of kinds that no Service proxy reads"),
        "manifest_object_bad": Meaning("an object does not have the shape of its kind"),
        "manifest_object_duplicate": Meaning("an object is there twice"),
        "manifest_events_missed": Meaning("files changed faster than the kernel could tell"),
        "manifest_directory_lost": Meaning("the directory is gone; what it had stays in use"),
        "manifest_directory_back": Meaning("it is there again"),
        "manifests_unexpected": Meaning("a bug; all files are read again"),
        "manifests_stopped": Meaning("a bug; the agent ends with exit code 1"),
    },
    "Ports and pages": {
        "healthz_not_listening metrics_not_listening health_check_not_listening": Meaning(
            "the port of `healthzBindAddress`, `metricsBindAddress` or of a Service's `healthCheckNodePort` cannot be had",
            more=("service",),
        ),
        "healthz_listening metrics_listening health_check_listening": Meaning("now it can"),
        "healthz_not_accepted metrics_not_accepted health_check_not_accepted": Meaning("no descriptors, or no memory"),
        "healthz_failure metrics_failure health_check_failure": Meaning("a bug; the server goes on"),
        "health_check_port_taken": Meaning("two Services want one `healthCheckNodePort`: the older has it"),
        "no_endpoint_packets_unreadable": Meaning(
            "the kernel did not tell its counters for `kube_proxy_nft_no_endpoint_packets_total`",
            "nothing, unless it repeats",
        ),
        "metrics_certificates_read": Meaning("they were renewed, and are in use"),
        "metrics_certificates_unusable": Meaning("what was renewed cannot be used; what was there before is"),
        "localhost_nodeport_listening": Meaning("a NodePort on loopback can be had now"),
        "localhost_nodeport_not_listening": Meaning("it cannot: mostly another program has the port"),
        "localhost_nodeport_rejected": Meaning("a NodePort that is not TCP has none on loopback (KEP-6032)"),
        "localhost_nodeport_full": Meaning("too many connections at once"),
        "localhost_connection_lost": Meaning("no socket for a connection to an endpoint: the client's is reset"),
        "endpoint_not_reached": Meaning("an endpoint did not take a connection: another one is tried"),
        "forwarder_failure": Meaning("a bug in the forwarder for loopback; it goes on"),
    },
    "UDP flows": {
        "udp_flows_compared": Meaning("all of them, after a start; `forgotten`: removed, because they lead elsewhere"),
        "udp_flows_forgotten": Meaning("those of service ports that changed"),
        "udp_flows_not_forgotten": Meaning("stale flows stay: UDP clients may reach endpoints that are gone"),
    },
    "Taking over from kube-proxy": {
        "take_over_waits": Meaning("`--take-over`: kube-proxy still runs here"),
        "take_over_drains": Meaning("IPVS carries connections: it is waited for their end"),
        "ipvs_connections_cut": Meaning("they took too long"),
        "take_over_unfinished": Meaning(
            "the agent ended first", "run `cleanup --kube-proxy`, or let the next agent do it"
        ),
        "take_over_kept": Meaning("what is not kube-proxy's alone stays"),
        "take_over_note": Meaning("something that is left to do by hand"),
        "take_over_unread": Meaning("it could not be seen whether something is there"),
        "take_over_failed": Meaning("a part could not be removed; all else works"),
        "took_over": Meaning(
            "done; how much of what was removed",
            more=("tables", "chains", "rules", "ipsets", "virtual_servers", "interfaces"),
        ),
        "kube_proxy_runs": Meaning("`cleanup --kube-proxy --force`: it puts back what is removed"),
    },
    "Other commands": {
        "look_failed": Meaning("`detect --watch`: a look failed"),
        "not_read": Meaning("`explain`: something is not known, and the answer is without it"),
        "nothing_traced": Meaning("`trace`: no new connection came by in that time"),
        "bundle_written": Meaning("`migrate collect` is done"),
    },
}

EVENTS: Final = {
    name: meaning for entries in SECTIONS.values() for names, meaning in entries.items() for name in names.split()
}

REASONS: Final = {
    "Starting": "the agent has programmed this node; `note` has its version",
    "FailedToStart": "it ended before it had programmed anything; `note` says why",
    "FailedToSyncRules": "the rules have not been up to date for more than 30 s; `note` says why",
    "SyncRulesRecovered": "they are again",
    "ServicePortRefused": "service ports that the kernel does not take: [what the kernel may refuse](refusals.md)",
    "AddressConflict": "Services claim an address, protocol and port that older ones have",
    "ProxyDeprecation": "a finding of `detect` that has no reason of its own",
}
"""Of Events on the Node. Those about deprecations are in docs/detect.md."""
