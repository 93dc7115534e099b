"""A real API server for tests: etcd and kube-apiserver from the folder that KUBEBUILDER_ASSETS names.

The variable and the folder are envtest's: https://book.kubebuilder.io/reference/envtest
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import yaml

from integration.apiserver.certificates import Authority, signing_key
from integration.etcd import Etcd
from integration.processes import ServerProcess, free_port
from integration.rest import Rest
from proxy.errors import UserError

VARIABLE = "KUBEBUILDER_ASSETS"
START_PATIENCE = 120.0
SERVICE_CIDRS = ("10.96.0.0/12", "fd00:10:96::/112")

USERS = {"admin": "system:masters", "system:kube-proxy": "", "nobody": ""}
"""Who has a token, and their groups. admin may do everything, system:kube-proxy what kube-proxy may, nobody nothing."""


def assets(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder; None when the variable is not set. Raises UserError when it lacks one of the programs."""
    if not environment.get(VARIABLE):
        return None
    folder = Path(environment[VARIABLE])
    for program in ("etcd", "kube-apiserver"):
        if not os.access(folder / program, os.X_OK):
            raise UserError(VARIABLE, f"{folder} has no program {program}", "see envtest's setup-envtest")
    return folder


def can_stream(etcd: tuple[int, ...]) -> bool:
    """Whether kube-apiserver has streaming lists with this etcd: it needs RequestWatchProgress without its old bugs."""
    return (3, 4, 31) <= etcd < (3, 5) or etcd >= (3, 5, 13)


class RealApi:
    """One etcd and one kube-apiserver, in `directory`. Between start() and stop() it answers on 127.0.0.1:`port`."""

    name = "real"

    def __init__(self, programs: Path, directory: Path) -> None:
        self._program, self._directory = programs / "kube-apiserver", directory
        self._log = directory / "kube-apiserver.log"
        self._process: ServerProcess | None = None
        self._etcd = Etcd(programs / "etcd", directory)
        self.port = 0

    def start(self) -> None:
        """Returns when it is ready, and has made what it makes at its first start. Raises UserError."""
        authority = Authority(self._directory / "certificates")
        self.ca, self._authority = authority.ca, authority
        self._serving, self._signing = authority.server(), signing_key(self._directory)
        self.tokens = {user: f"token-of-{user.replace(':', '-')}" for user in USERS}
        lines = [
            f'{self.tokens[user]},{user},{number},"{groups}"' for number, (user, groups) in enumerate(USERS.items())
        ]
        (self._directory / "tokens.csv").write_text("".join(f"{line}\n" for line in lines))
        try:
            self._etcd.start()
            self.streams = can_stream(self._etcd.version)
            self.port = free_port()
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        certificate, key = self._serving
        private, public = self._signing
        argv = [
            str(self._program),
            f"--etcd-servers={self._etcd.url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self._directory / 'certificates'}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self.ca}",
            f"--token-auth-file={self._directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}",
            f"--service-cluster-ip-range={','.join(SERVICE_CIDRS)}",
            "--disable-admission-plugins=ServiceAccount",  # pods would need accounts, which a controller makes
            "--endpoint-reconciler-type=none",  # it would write 127.0.0.1 as an endpoint, which is not valid
        ]
        self._process = ServerProcess(argv, self._log)
        self._process.wait_for(self._ready, START_PATIENCE)

    def _ready(self) -> bool:
        try:
            if self.rest("").get("/readyz").status != 200:
                return False
            # There is no namespace `default` before this, and no address for a Service.
            return self.rest("admin").get("/api/v1/namespaces/default/services/kubernetes").status == 200
        except OSError:
            return False

    def stop(self) -> None:
        """May be called twice. The objects are gone with the next start()."""
        if self._process:
            self._process.stop()
        self._etcd.stop()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def rest(self, user: str = "admin") -> Rest:
        """Requests of one of USERS, or of nobody at all: ''."""
        return Rest(self.url, self.ca, self.tokens[user] if user else "")

    def kubeconfig(self, path: Path, user: str = "admin") -> str:
        """Write a kubeconfig of this user to `path`."""
        write_kubeconfig(path, self.url, self.ca, {"token": self.tokens[user]})
        return str(path)

    def compact(self) -> None:
        """Forget the history: of etcd's, and of the watch cache, which only a restart does."""
        self._etcd.compact()
        self.restart()

    def restart(self) -> None:
        """The API server ends and comes back at the same address; etcd stays."""
        if self._process:
            self._process.stop()
        self._start()


def write_kubeconfig(path: Path, url: str, ca: str, user: dict[str, str]) -> None:
    """`ca`: path of the authority's certificate; '' for a server without TLS. `user`: the user's entries."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url} | ({"certificate-authority": ca} if ca else {})}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
