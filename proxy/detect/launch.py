"""Which of the programs that are, have or start a kube-proxy a command starts, through shells and other wrappers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from proxy.detect import shell
from proxy.detect.words import Variables, Word

_SHELLS: Final = frozenset({"ash", "bash", "busybox", "dash", "ksh", "sh", "zsh"})
_WRAPPERS: Final = frozenset({
    "catatonit", "chroot", "chrt", "command", "ctr", "docker", "dumb-init", "env", "exec", "go-runner", "gosu", "ionice",
    "kube-log-runner", "nerdctl", "nice", "nohup", "nsenter", "numactl", "podman", "setpriv", "setsid", "stdbuf",
    "su-exec", "sudo", "systemd-run", "taskset", "time", "tini", "unshare",
})  # fmt: skip
"""Programs that start the one that their command line names."""
_DEPTH: Final = 4  # scripts in scripts


class Launch(Struct, frozen=True):
    """program: "kube-proxy", "k3s", "rke2", or "kubelite" (microk8s). arguments: without the program and its command."""

    program: str
    arguments: tuple[Word, ...]


def launches(
    words: Sequence[Word], variables: Variables, depth: int = _DEPTH, *, counts_lines: bool = False
) -> list[Launch]:
    """What this command starts of our programs, directly or through wrappers. counts_lines: a script in it has lines of
    its own, which begin at its word's."""
    if not words:
        return []
    found = _started(words, variables, depth, counts_lines)
    if not found and base_name(words[0].text) in _WRAPPERS:
        return _wrapped(words, variables, depth, counts_lines)
    return found


def in_script(
    script: Word, variables: Variables, depth: int = _DEPTH, *, counts_lines: bool = False
) -> Iterator[Launch]:
    """What the commands of a script start."""
    for command in shell.commands(script, variables, counts_lines=counts_lines):
        yield from launches(command, variables, depth)


def base_name(text: str) -> str:
    """The name of a program: of its path on Linux or Windows, or of the container image that it is alone in."""
    name = re.split(r"[/\\]", text.strip())[-1].lower()
    return re.split("[:@]", name)[0].removesuffix(".exe")


def _started(words: Sequence[Word], variables: Variables, depth: int, counts_lines: bool) -> list[Launch]:
    """What the first word starts, if it is one of our programs or a shell."""
    direct = _direct(words)
    if direct is not None:
        return [direct]
    if depth and base_name(words[0].text) in _SHELLS:
        script = _script(words)
        return list(in_script(script, variables, depth - 1, counts_lines=counts_lines)) if script else []
    return []


def _direct(words: Sequence[Word]) -> Launch | None:
    name = base_name(words[0].text)
    following = words[1].text if len(words) > 1 else ""
    if name in ("kube-proxy", "kubelite"):
        return Launch(name, tuple(words[1:]))
    if name == "hyperkube" and following in ("proxy", "kube-proxy"):
        return Launch("kube-proxy", tuple(words[2:]))
    if name in ("k3s", "rke2") and following in ("server", "agent"):
        return Launch(name, tuple(words[2:]))
    return None


def _script(words: Sequence[Word]) -> Word | None:
    """What a shell gets with -c."""
    for number, word in enumerate(words[1:], 1):
        if re.fullmatch("-[a-z]*c", word.text):
            return words[number + 1] if number + 1 < len(words) else None
    return None


def _wrapped(words: Sequence[Word], variables: Variables, depth: int, counts_lines: bool) -> list[Launch]:
    """The command in a wrapper's. A plain name after a flag is the flag's value (docker run --name kube-proxy), if there
    is a better one."""
    found: list[tuple[bool, list[Launch]]] = []
    for number in range(1, len(words)):
        before, text = words[number - 1].text, words[number].text
        started = _started(words[number : number + 500], variables, depth, counts_lines)
        if started:
            found.append((before.startswith("-") and "=" not in before and "/" not in text, started))
            if not found[-1][0]:
                break
    return min(found, key=lambda item: item[0])[1] if found else []
