"""Command lines, however they are wrapped, and what kube-proxy makes of its flags."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.detect.command_line import parse_flags, read_command
from proxy.detect.evidence import ConfiguredMode, Evidence, FeatureGate, IpvsOption, Place, Unreadable
from proxy.detect.flag_files import environment
from proxy.detect.launch import base_name, launches
from proxy.detect.shell import commands
from proxy.detect.units import Setting, parse, read
from proxy.detect.words import Word, expand, words

PROCESS = Place("process", "7 (kube-proxy)", node="n1")
FILE = Place("file", "f")


def config(path: str) -> list[Evidence]:
    return [ConfiguredMode(place=Place("file", path), mode="nftables")]


def flags(line: str) -> dict[str, str]:
    return {name: flag.value for name, flag in parse_flags(words(shlex.split(line))).values.items()}


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("--proxy-mode=ipvs", {"proxy-mode": "ipvs"}),
        ("--proxy-mode ipvs --v 4", {"proxy-mode": "ipvs", "v": "4"}),
        ("--proxy_mode=ipvs", {"proxy-mode": "ipvs"}),
        ("--proxy-mode --v=4", {"proxy-mode": "--v=4"}),  # as pflag takes it
        ("--proxy-mode=", {"proxy-mode": ""}),
        ("--proxy-mode=a --proxy-mode=b", {"proxy-mode": "b"}),
        ("--masquerade-all --proxy-mode ipvs", {"masquerade-all": "true", "proxy-mode": "ipvs"}),
        ("--cleanup-iptables --proxy-mode=ipvs", {"cleanup-iptables": "true", "proxy-mode": "ipvs"}),  # of old releases
        ("--oom-score-adj -999 -v=4", {"oom-score-adj": "true", "999": "true", "v": "4"}),
        ("-- --proxy-mode=ipvs", {}),
        ("proxy-mode=ipvs - -- x", {}),
        ("--proxy-mode='\"ipvs\"'", {"proxy-mode": '"ipvs"'}),  # quotes that no shell took away
    ],
)
def test_flags(line: str, values: dict[str, str]) -> None:
    assert flags(line) == values


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", [("", False)]),
        ("--proxy-mode=ipvs", [("ipvs", False)]),
        ("--config=/c", [("nftables", False)]),
        ("--config /c --proxy-mode=ipvs --ipvs-scheduler=rr --feature-gates=KubeProxyIPVS=true", [("nftables", False), ("ipvs", True)]),
        ("--proxy-mode=ipvs --config=", [("ipvs", False)]),
        ("--cleanup", []),
        ("--cleanup=false --proxy-mode=ipvs", [("ipvs", False)]),
        ("--init-only --proxy-mode=ipvs", []),
        ("--write-config-to=/f --proxy-mode=ipvs", []),
        ("--version", []),
    ],
)  # fmt: skip
def test_the_file_goes_before_the_flags(line: str, found: list[tuple[str, bool]]) -> None:
    evidence = read_command(words(shlex.split(line)), PROCESS, config)
    assert [(e.mode, e.overridden) for e in evidence if isinstance(e, ConfiguredMode)] == found
    assert all(isinstance(e, ConfiguredMode) for e in evidence)


def test_options_and_gates_of_flags() -> None:
    line = (
        "--ipvs-scheduler=lc --ipvs-strict-arp --ipvs-sync-period=30s --ipvs-tcp-timeout=0s --ipvs-exclude-cidrs=[]"
        " --feature-gates=A=true,KubeProxyIPVS=false --feature-gates=KubeProxyIPVS=T"
    )
    evidence = read_command(words(line.split()), PROCESS, config)
    options = {e.name: e.value for e in evidence if isinstance(e, IpvsOption)}
    assert options == {"--ipvs-scheduler": "lc", "--ipvs-strict-arp": "true"}
    assert [e.value for e in evidence if isinstance(e, FeatureGate)] == [True]  # the last one counts
    assert {e.place.node for e in evidence} == {"n1"}


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("kube-proxy --proxy-mode", "--proxy-mode has no value"),
        ("kube-proxy --proxy-mode=$MODE", "it is the mode, and what MODE is cannot be seen"),
        ("kube-proxy $ARGS", "more flags are in it, and what ARGS is cannot be seen"),
        ("kube-proxy --config=$(find / -name x)", "--config names the file that decides, and what a command is"),
    ],
)
def test_what_a_command_line_hides(line: str, cause: str) -> None:
    [launch] = [launch for command in commands(Word(line), {}) for launch in launches(command, {})]
    [found] = read_command(launch.arguments, PROCESS, config)
    assert isinstance(found, Unreadable) and found.cause.startswith(cause)


@pytest.mark.parametrize(
    ("line", "program", "arguments"),
    [
        ("kube-proxy --a", "kube-proxy", "--a"),
        ("/usr/local/bin/kube-proxy", "kube-proxy", ""),
        ("/hyperkube proxy --a", "kube-proxy", "--a"),
        ("hyperkube kube-proxy --a", "kube-proxy", "--a"),
        ("/usr/local/bin/k3s server --a", "k3s", "--a"),
        ("rke2 agent", "rke2", ""),
        ("/snap/microk8s/7000/kubelite --a", "kubelite", "--a"),
        ("docker run --name kube-proxy --privileged img kube-proxy --a", "kube-proxy", "--a"),
        ("docker run --privileged registry.k8s.io/kube-proxy:v1.30.1 --a", "kube-proxy", "--a"),
        ("/go-runner --log-file=/l --also-stdout /usr/local/bin/kube-proxy --a", "kube-proxy", "--a"),
        ("exec -a kube-proxy /opt/kube-proxy --a", "kube-proxy", "--a"),
        ("sudo nice -n 5 nohup kube-proxy --a", "kube-proxy", "--a"),
        ("busybox sh -ec 'cd /; A=1 exec kube-proxy --a'", "kube-proxy", "--a"),
        ("sudo bash -c 'sh -c \"kube-proxy --a\"'", "kube-proxy", "--a"),
        ("systemctl restart kube-proxy", "", ""),
        ("grep kube-proxy", "", ""),
        ("docker rm -f kube-proxy-old", "", ""),
        ("kube-proxy-nft run", "", ""),
        ("k3s kubectl get nodes", "", ""),
        ("hyperkube kubelet", "", ""),
        ("sh kube-proxy", "", ""),
        ("sh -c", "", ""),
        ("", "", ""),
    ],
)
def test_what_a_command_starts(line: str, program: str, arguments: str) -> None:
    found = launches(words(shlex.split(line)), {})
    assert [(launch.program, " ".join(w.text for w in launch.arguments)) for launch in found] == (
        [(program, arguments)] if program else []
    )


def test_a_script_that_starts_itself() -> None:
    again = Word('sh -c "$X"')
    assert launches(words(["sh", "-c", again.text]), {"X": again}) == []


def test_names_of_programs() -> None:
    for text in (
        "kube-proxy",
        "/a/b/kube-proxy",
        "C:\\k\\Kube-Proxy.exe",
        "r.io/kube-proxy:v1",
        "r.io:5000/kube-proxy@sha256:0",
    ):
        assert base_name(text) == "kube-proxy"


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("a b  c", [["a", "b", "c"]]),
        ("a 'b $X' \"c $X\" d\\ e", [["a", "b $X", "c 1 2", "d e"]]),
        ("a $X$X", [["a", "1", "21", "2"]]),
        ("a ${Y:-d} ${Y-e} ${X:-f}", [["a", "d", "e", "1", "2"]]),
        ("A=1; A2=$A; a $A2", [["a", "1"]]),
        ("a <b >c 2>&1 d 2>>e", [["a", "d"]]),
        ("a # b\nc#d", [["a"], ["c#d"]]),
        ("if a; then b; else c; fi", [["a"], ["b"], ["c"]]),
        ("(a | b) && c || d &", [["a"], ["b"], ["c"], ["d"]]),
        ("cat <<'E' >f\na b\nE\nc", [["cat"], ["c"]]),
        ("a \\\n b", [["a", "b"]]),
        ("export Z=3; a $Z", [["a", "3"]]),
        ("a '' \"\"", [["a", "", ""]]),
        ("a 'b", [["a", "b"]]),
    ],
)
def test_scripts(script: str, found: list[list[str]]) -> None:
    assert [[word.text for word in command] for command in commands(Word(script), {"X": Word("1 2")})] == found


def test_a_variable_that_is_set_to_two_things_is_not_known() -> None:
    script = "A=1\nif x; then A=2; fi\nB=1\nB=1\na $A $B $C\n"
    command = commands(Word(script, Place("file", "s", line=3)), {}, counts_lines=True)[-1]
    assert [word.unknown for word in command] == ["", "A", "", "C"]
    assert [word.place.line for word in command if word.place] == [7, 7, 6, 7]


def test_references_in_containers() -> None:
    known = {"A": Word("1"), "B": None}
    assert expand(Word("x$(A)$$(A)$(C)"), known).text == "x1$(A)$(C)"
    assert expand(Word("$(B)"), known).unknown == "B"


def unit(text: str) -> list[Setting]:
    return parse(f"[Service]\n{text}\n[Install]\nExecStart=kube-proxy --proxy-mode=never\n", Place("unit", "u"))


@pytest.mark.parametrize(
    ("text", "mode", "line"),
    [
        ("ExecStart=kube-proxy --proxy-mode=ipvs", "ipvs", 2),
        ("ExecStart=-@/bin/kube-proxy kube-proxy --proxy-mode=ipvs", "ipvs", 2),
        ('ExecStart=kube-proxy "--proxy-mode=ipvs"', "ipvs", 2),
        ("ExecStart=kube-proxy \\\n;x\n  --proxy-mode=ipvs", "ipvs", 4),
        ("ExecStart=a\nExecStart=\nExecStart=kube-proxy --proxy-mode=ipvs", "ipvs", 4),
        ("Environment=M=ipvs\nExecStart=kube-proxy --proxy-mode=${M}", "ipvs", 2),
        ("Environment='A=--proxy-mode ipvs' B=1\nExecStart=kube-proxy $A", "ipvs", 2),
        ("Environment=A=--proxy-mode=ipvs\nEnvironment=\nExecStart=kube-proxy $A", "", 4),
        ("ExecStart=/bin/sh -c 'exec kube-proxy --proxy-mode=ipvs'", "ipvs", 2),
        ("Environment=M=ipvs\nExecStart=/bin/sh -c 'exec kube-proxy --proxy-mode=$M'", "ipvs", 3),
        ("ExecStart=kube-proxy --proxy-mode=$$M", "$M", 2),
    ],
)
def test_services(text: str, mode: str, line: int) -> None:
    place = Place("unit", "u")
    [found] = [e for e in read(unit(text), place, None) if isinstance(e, ConfiguredMode)]
    assert (found.mode, found.place.line) == (mode, line)


def test_environment_files() -> None:
    text = '# A=0\nA=b c\n export B=\'d\'\nC="e\\"f\nG=g"\nD=h \\\n i\n; E=x\nbad line\nF=\n'
    found = environment(text, FILE)
    assert {name: word.text for name, word in found.items()} == {
        "A": "b c", "B": "d", "C": 'e"f\nG=g', "D": "h   i", "F": ""
    }  # fmt: skip
    assert found["D"].place == Place("file", "f", line=6)


FLAG_WORDS = ("--config", "--proxy-mode=a", "--proxy-mode", "--feature-gates=A,=,B=x", "ipvs", "-", "--", "-v", "--x=y")


@given(st.lists(st.sampled_from(FLAG_WORDS), max_size=8))
def test_any_flags(arguments: list[str]) -> None:
    read_command(words(arguments), PROCESS, config)


@given(st.text(alphabet="ab$(){}`'\"\\\n;&|<>#= -", max_size=40))
def test_any_script(text: str) -> None:
    for command in commands(Word(text, FILE), {"a": Word("b")}, counts_lines=True):
        launches(command, {})
    parse(text, FILE)
    read(unit(f"ExecStart=kube-proxy {text}"), FILE, None)
    environment(text, FILE)
