"""The parser of iptables-save's text."""

from __future__ import annotations

import pytest

from proxy.migrate.iptables_save import Option, Rule, parse, rule_of
from tests.dataplanes import recorded

RECORDINGS = [(mode, program) for mode in ("iptables", "ipvs") for program in ("iptables", "ip6tables")]


def written(rule: Rule) -> list[str]:
    """The words of a rule again, without quotes."""
    words = [f"[{rule.packets}:{rule.bytes}]"] if rule.packets >= 0 else []
    words += ["-A", rule.chain]
    module = ""
    for option in rule.matches:
        if (option.module and option.module != module) or not option.name:
            words += ["-m", option.module]
        module = option.module or module
        words += (["!"] if option.negated else []) + [option.name, *option.values] if option.name else []
    words += ["-g" if rule.goto else "-j", rule.target] if rule.target else []
    for option in rule.arguments:
        words += (["!"] if option.negated else []) + [option.name, *option.values]
    return " ".join(words).split()


@pytest.mark.parametrize(("mode", "program"), RECORDINGS)
def test_nothing_of_a_recording_is_lost(mode: str, program: str) -> None:
    text = recorded(mode, f"{program}-save.txt")
    saved = parse(text)
    rules = [rule for table in saved.tables.values() for chain in table.values() for rule in chain.rules()]
    lines = [line for line in text.splitlines() if " -A " in line]
    assert [written(rule) for rule in rules] == [line.replace('"', "").split() for line in lines]
    assert sum(map(len, saved.tables.values())) == sum(line.startswith(":") for line in text.splitlines())
    assert saved.tables["filter"]["FORWARD"].policy == "ACCEPT"
    assert saved.tables["nat"]["KUBE-SERVICES"].policy == ""


def test_counters_or_not() -> None:
    plain = parse("*filter\n:INPUT DROP\n-A INPUT -j ACCEPT\nCOMMIT\n").chain("filter", "INPUT")
    counted = parse("*filter\n:INPUT DROP [3:180]\n[1:60] -A INPUT -j ACCEPT\nCOMMIT\n").chain("filter", "INPUT")
    assert plain is not None and counted is not None
    assert (plain.policy, plain.packets, counted.packets, counted.bytes) == ("DROP", 0, 3, 180)
    assert list(plain.rules()) == [Rule("INPUT", "ACCEPT")]
    assert list(counted.rules()) == [Rule("INPUT", "ACCEPT", packets=1, bytes=60)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-A a", Rule("a")),
        ("-A a -g b", Rule("a", "b", goto=True)),
        ("-A a ! -s 10.0.0.0/8", Rule("a", matches=(Option("", "-s", ("10.0.0.0/8",), True),))),
        ("-A a -s ! 10.0.0.0/8", Rule("a", matches=(Option("", "-s", ("10.0.0.0/8",), True),))),
        ("-A a -m tcp", Rule("a", matches=(Option("tcp", ""),))),
        ("-A a -p tcp -m tcp -j b", Rule("a", "b", matches=(Option("", "-p", ("tcp",)), Option("tcp", "")))),
        (
            "-A a -p tcp -m tcp ! --sport 1:9 --tcp-flags FIN,SYN SYN -j b",
            Rule(
                "a",
                "b",
                matches=(
                    Option("", "-p", ("tcp",)),
                    Option("tcp", "--sport", ("1:9",), True),
                    Option("tcp", "--tcp-flags", ("FIN,SYN", "SYN")),
                ),
            ),
        ),
        (r'-A a -m comment --comment "a \"b\" \\ -j c" -j d', None),
        ("-A a -m comment --comment -j -j d", None),
        ("-A a -m set ! --match-set KUBE-X dst,dst -j d", Rule("a", "d", matches=(Option("set", "--match-set", ("KUBE-X", "dst,dst"), True),))),
        (
            "-A a -j SNAT --to-source 10.0.0.1 --random",
            Rule("a", "SNAT", arguments=(Option("SNAT", "--to-source", ("10.0.0.1",)), Option("SNAT", "--random"))),
        ),
        ("-A a -j MARK --set-xmark 0x1/0xffffffff", Rule("a", "MARK", arguments=(Option("MARK", "--set-xmark", ("0x1/0xffffffff",)),))),
        ("-A a -m limit --limit 5/min -j LOG --log-prefix \"drop: \" --log-level 7", None),
        ("-A a -m connlimit --connlimit-above -1", Rule("a", matches=(Option("connlimit", "--connlimit-above", ("-1",)),))),
    ],
)  # fmt: skip
def test_rules(line: str, expected: Rule | None) -> None:
    assert rule_of(line) == (expected or OTHERS[line])


def comment(text: str) -> Option:
    return Option("comment", "--comment", (text,))


OTHERS = {
    r'-A a -m comment --comment "a \"b\" \\ -j c" -j d': Rule("a", "d", matches=(comment('a "b" \\ -j c'),)),
    "-A a -m comment --comment -j -j d": Rule("a", "d", matches=(comment("-j"),)),
    '-A a -m limit --limit 5/min -j LOG --log-prefix "drop: " --log-level 7': Rule(
        "a",
        "LOG",
        matches=(Option("limit", "--limit", ("5/min",)),),
        arguments=(Option("LOG", "--log-prefix", ("drop: ",)), Option("LOG", "--log-level", ("7",))),
    ),
}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "COMMIT",
        "-D a -j b",
        '-A a -m comment --comment "open',
        "-A a b",
        "-A a !",
        "-A a ! ! -s x",
        "-A a -m -j b",
        "-A a -j",
    ],
)
def test_rules_that_cannot_be(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        rule_of(line)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello\n", "line 1: no line of iptables-save: hello"),
        ("*filter\n:INPUT ACCEPT [0:0]\n-A OTHER -j ACCEPT\nCOMMIT\n", "line 3: a rule of no chain"),
        ("# x\n-A INPUT -j ACCEPT\n", "line 2: a rule of no chain"),
        (":INPUT ACCEPT [0:0]\n", "line 1: a chain of no table"),
        ("*filter\n:INPUT ACCEPT [0:0]\n", "without COMMIT"),
        ("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j ACC", "without COMMIT"),
        ("*filter\n:INPUT\nCOMMIT\n", "line 2"),
    ],
)
def test_texts_that_cannot_be(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


def test_chains_whose_rules_stand_apart_and_tables_that_come_twice() -> None:
    text = "*t\n:a - [0:0]\n:ab - [0:0]\n-A a -j x\n-A ab -j y\n-A a -j z\nCOMMIT\n*t\n:b - [0:0]\n-A b -j w\nCOMMIT"
    saved = parse(text.encode())
    assert {name: [rule.target for rule in chain.rules()] for name, chain in saved.tables["t"].items()} == {
        "a": ["x", "z"],
        "ab": ["y"],
        "b": ["w"],
    }


def test_what_iptables_nft_cannot_show() -> None:
    text = (
        "# Warning: iptables-legacy tables present\n# Table `nat' is incompatible, use 'nft' tool.\n\n*filter\nCOMMIT\n"
    )
    assert parse(text).incompatible == ("nat",)


def test_text_that_is_no_unicode_and_odd_line_ends() -> None:
    saved = parse(b'*f\n:a - [0:0]\n-A a -m comment --comment "\xff\x0c\xc2\x85x" -j b\n\nCOMMIT\n')
    assert [rule.target for rule in saved.tables["f"]["a"].rules()] == ["b"]
