"""Any file as evidence: what it is, is told by what is in it, and by its name where that is not enough. Pure.

Nothing is judged here, and nothing but modes, options of IPVS and feature gates leaves it: such files hold secrets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.detect import installers, k3s, objects, units
from proxy.detect.command_line import read_command
from proxy.detect.configured import distinct
from proxy.detect.evidence import ConfiguredMode, Evidence, Place, Unreadable
from proxy.detect.flag_files import environment, flag_words
from proxy.detect.launch import in_script, launches
from proxy.detect.objects import Source
from proxy.detect.proxy_config import is_proxy_config, looks_like_one, read_config, unreadable
from proxy.detect.started import Machine, config_reader, read_launch
from proxy.detect.text import decode
from proxy.detect.words import Word, words
from proxy.detect.yaml_lines import Value, read_yaml

_K3S_FILE: Final = re.compile(r"(?:^|/)rancher/(k3s|rke2)/config\.yaml(\.d/[^/]+\.ya?ml)?$", re.IGNORECASE)
_UNIT_FILE: Final = re.compile(r"\.service$|\.service\.d/[^/]+\.conf$")
_FLAG: Final = re.compile(r"--?[a-z][a-z0-9-]*([ =]|$)")
_COMMAND: Final = re.compile(r"\S*\b(kube-proxy|hyperkube|k3s|rke2|kubelite)(\.exe)?\s")
_WINDOWS: Final = re.compile(r"\S*\\[^\n]*\n?$")
_VARIABLE: Final = re.compile(r"(export\s+)?[A-Za-z_][A-Za-z0-9_]*=")
_NOTHING: Final = "it holds nothing of a kube-proxy"
_REMEDY: Final = (
    "give a KubeProxyConfiguration, a manifest, a unit or a configuration file that has or starts a kube-proxy"
)


def read_file(
    path: str, data: bytes, *, node: str = "", expected: bool = False, machine: Machine | None = None
) -> list[Evidence]:
    """What a file with this name and content says of a kube-proxy; never raises.

    node: the name of the node that it is of. expected: somebody says that it is about kube-proxy, so a mapping without
    a kind may be a KubeProxyConfiguration, and that there is nothing in it is worth saying. machine: where it is, for the
    files that it names; None when they are not to be had.
    """
    place = Place("file", path, node=node)
    text, faults = decode(data)
    if not expected and not re.search("proxy|rke2|k3s|kubelite", f"{path} {text}", re.IGNORECASE):
        return []
    found = _Reader(place, expected, machine).read(text)
    found += [unreadable(fault, place) for fault in faults]
    if expected and not any(isinstance(e, ConfiguredMode | Unreadable) for e in found):
        found.append(Unreadable(place=place, cause=_NOTHING, remedy=_REMEDY))
    return distinct(found)


class _Reader:
    def __init__(self, place: Place, expected: bool, machine: Machine | None) -> None:
        self._place, self._expected, self._machine = place, expected, machine

    def read(self, text: str) -> list[Evidence]:
        first = _first_line(text)
        if units.is_unit(text) or _UNIT_FILE.search(self._place.name):
            place = msgspec.structs.replace(self._place, kind="unit")
            return units.read(units.parse(text, place), place, self._machine)
        if text.startswith("#!") or _COMMAND.match(first):
            return self._script(text)
        if _FLAG.match(first):
            read = config_reader(self._place, self._machine)
            return read_command(flag_words(text, self._place), self._place, read)
        if _VARIABLE.match(first):
            return self._variables(text)
        return self._documents(text)

    def _script(self, text: str) -> list[Evidence]:
        if _WINDOWS.match(text):  # the backslashes mean nothing to its shell
            return [
                e
                for launch in launches(words(text.split()), {})
                for e in read_launch(launch, msgspec.structs.replace(self._place, line=1), self._machine)
            ]
        script = Word(text, msgspec.structs.replace(self._place, line=1))
        found: list[Evidence] = []
        for launch in in_script(script, {}, counts_lines=True):
            found += read_launch(launch, self._place, self._machine)
        return found

    def _variables(self, text: str) -> list[Evidence]:
        """Variables whose values are flags of a kube-proxy."""
        found: list[Evidence] = []
        for name, value in environment(text, self._place).items():
            words = [Word(word, value.place) for word in value.text.split()]
            flags = any(re.match("--(proxy-mode|config|ipvs-|feature-gates|cluster-cidr)", word.text) for word in words)
            if flags and "PROXY" in f"{name} {self._place.name}".upper():
                place = value.place or self._place
                read = config_reader(self._place, self._machine)
                found += read_command(words, msgspec.structs.replace(place, part=name), read)
        return found

    def _documents(self, text: str) -> list[Evidence]:
        documents, faults = read_yaml(text)
        found: list[Evidence] = []
        for document in documents:
            if self._is_proxy_config(document):
                found += read_config(document, self._place)
        cluster = [document for document in documents if objects.is_object(document)]
        if cluster:
            host = config_reader(self._place, self._machine) if self._machine is not None else None
            found += objects.read(cluster, Source(self._place.name, self._place.node, host))
        found += installers.evidence_of(documents, self._place)
        found += self._k3s(documents)
        if self._expected:
            found += self._kubeadm(documents, found)
        if found or self._is_about_us(documents):
            found += [unreadable(fault, self._place) for fault in faults]
        return found

    def _kubeadm(self, documents: Sequence[Value], found: list[Evidence]) -> list[Evidence]:
        """What a file for kubeadm says besides. What is `found` of it has kubeadm's default then."""
        ours = next((document for document in documents if installers.is_kubeadm(document)), None)
        if ours is None:
            return []
        version = installers.kubeadm_version(ours, self._place)
        if not found:
            mode = installers.kubeadm(ours, self._place)
            return mode + version if any(isinstance(e, ConfiguredMode) for e in mode) else mode
        found[:] = [installers.with_kubeadm(e, ours) if isinstance(e, ConfiguredMode) else e for e in found]
        return version

    def _is_about_us(self, documents: Sequence[Value]) -> bool:
        """Whether its faults are worth naming: another file may be in any language."""
        named = self._expected or "kube" in self._place.name.lower() or _K3S_FILE.search(self._place.name)
        return bool(named) or any(
            self._is_proxy_config(d) or k3s.is_config(d) or installers.reader_of(d) is not None for d in documents
        )

    def _is_proxy_config(self, document: Value) -> bool:
        return is_proxy_config(document) or (self._expected and self._is_meant(document))

    def _is_meant(self, document: Value) -> bool:
        """A mapping without a kind that is of no other tool."""
        return looks_like_one(document) and installers.reader_of(document) is None and not k3s.is_config(document)

    def _k3s(self, documents: Sequence[Value]) -> list[Evidence]:
        named = _K3S_FILE.search(self._place.name)
        drop_in = bool(named and named[2])  # it says nothing of what it does not name
        found: list[Evidence] = []
        for document in documents[:1]:
            if k3s.is_config(document) or (named and isinstance(document.data, dict)):
                program = named[1].lower() if named else "k3s"
                layers = k3s.from_file(document, self._place)
                found += k3s.read(program, layers, config_reader(self._place, self._machine), self._place)
        if drop_in:
            found = [e for e in found if not (isinstance(e, ConfiguredMode) and e.sure == "likely")]
        return found


def _first_line(text: str) -> str:
    """The first that says something."""
    for line in text.lstrip("\ufeff").splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith(("#", ";")):
            return stripped
    return ""
