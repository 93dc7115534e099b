"""What a kubeconfig, or the service account of the pod we run in, says: which servers, and as whom. Reads no other file.

The format is clientcmd's v1 Config. The `kubernetes` package reads it too, but costs 16 MB of memory and a sixth of a
second for the rest of what it can do.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from proxy.errors import SourceError

IN_CLUSTER: Final = "in-cluster configuration"
ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"

MAX_VALUES: Final = 100_000


class Pem(Struct, frozen=True):
    """Certificates or a key: in a file that may be replaced, or here. Neither: there is none."""

    file: str = ""
    data: bytes = b""

    def __bool__(self) -> bool:
        return bool(self.file or self.data)


class Access(Struct, frozen=True):
    """How to reach the API server, and as whom.

    source: what to call this in errors. servers: URLs without a slash at the end; one is as good as another.
    ca: nothing: the system's authorities. server_name: whom to expect there, '' as in the URL. token_file comes before
    token. plugin: users[].user.exec; cwd: where it runs.
    """

    source: str
    servers: tuple[str, ...]
    ca: Pem = Pem()
    verify: bool = True
    server_name: str = ""
    proxy: str = ""
    token: str = ""
    token_file: str = ""
    username: str = ""
    password: str = ""
    certificate: Pem = Pem()
    key: Pem = Pem()
    plugin: dict[str, Any] | None = None
    cwd: str = ""

    @property
    def files(self) -> list[str]:
        """Those that are read for a connection, and may be replaced while we run."""
        return [pem.file for pem in (self.ca, self.certificate, self.key) if pem.file and not pem.data]


class _Kebab(Struct, rename="kebab"):
    pass


class _Cluster(_Kebab):
    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""


class _User(_Kebab):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    exec: dict[str, Any] | None = None
    auth_provider: dict[str, Any] | None = None


class _Context(_Kebab):
    cluster: str = ""
    user: str = ""


class _NamedCluster(Struct):
    name: str
    cluster: _Cluster


class _NamedUser(Struct):
    name: str
    user: _User | None = None


class _NamedContext(Struct):
    name: str
    context: _Context


class _Config(_Kebab):
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


_Named = TypeVar("_Named", _NamedCluster, _NamedUser, _NamedContext)


def read_access(kubeconfig: str, server: str, environment: Mapping[str, str] = os.environ) -> Access:
    """What the file says, or the pod if there is none. Raises SourceError.

    server: one URL, or several with commas between them, instead of those; alone, nobody's credentials are sent to it.
    """
    if kubeconfig:
        access = _read_file(kubeconfig)
    elif server:
        access = Access("the server that is named", ())
    else:
        access = _in_cluster(environment)
    servers = [url.strip().rstrip("/") for url in server.split(",") if url.strip()] or access.servers
    for url in servers or ("",):
        _check_server(access.source, url)
    return msgspec.structs.replace(access, servers=tuple(dict.fromkeys(servers)))


def _in_cluster(environment: Mapping[str, str]) -> Access:
    host, port = (environment.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    if not host or not port:
        remedy = "run in a pod with a service account, or name a kubeconfig: --kubeconfig FILE"
        raise SourceError(IN_CLUSTER, "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set", remedy)
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Access(IN_CLUSTER, (server,), Pem(f"{ACCOUNT}/ca.crt"), token_file=f"{ACCOUNT}/token")


def _read_file(path: str) -> Access:
    import yaml

    hint = f"try it with: kubectl --kubeconfig {path} get services"
    try:
        plain = yaml.load(Path(path).read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as e:
        raise SourceError(path, e.strerror or str(e), "check the path and its permissions") from None
    except yaml.MarkedYAMLError as e:  # without the snippet that str() has: it may show a token
        line = f" in line {e.problem_mark.line + 1}" if e.problem_mark else ""
        raise SourceError(path, f"not YAML: {e.problem}{line}", "write a valid kubeconfig") from None
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError):  # also of !!tags that do not fit
        raise SourceError(
            path, "not YAML: it has bytes or values that no text has", "write a valid kubeconfig"
        ) from None
    except RecursionError:
        raise SourceError(path, "not a kubeconfig: nested too deeply", hint) from None
    if plain is None:
        raise SourceError(path, "the file is empty", "write a valid kubeconfig")
    try:
        config = msgspec.convert(_without_nulls(plain, [MAX_VALUES]), _Config)
    except RecursionError:
        raise SourceError(path, "not a kubeconfig: more values than it can have, or within itself", hint) from None
    except msgspec.ValidationError as e:  # names the field and never its value
        raise SourceError(path, f"not a kubeconfig: {e}", hint) from None
    if not config.current_context:
        raise SourceError(path, "it has no current-context", hint)
    context = _find(path, "context", config.contexts, config.current_context).context
    cluster = _find(path, "cluster", config.clusters, context.cluster).cluster
    user = _find(path, "user", config.users, context.user).user if context.user else None
    return _access(path, cluster, user or _User())


def _find(path: str, what: str, entries: Sequence[_Named] | None, name: str) -> _Named:
    for entry in entries or ():
        if entry.name == name:
            return entry
    raise SourceError(path, f"it has no {what} named {name!r}", "correct the current context, or add what it names")


def _access(path: str, cluster: _Cluster, user: _User) -> Access:
    if user.auth_provider is not None:
        raise SourceError(
            path, "the user has an auth-provider, which is not supported", "use exec, a token or a certificate"
        )
    directory = os.path.dirname(os.path.abspath(path))

    def place(file: str) -> str:
        return os.path.join(directory, file) if file else ""

    def pem(field: str, file: str, data: str) -> Pem:
        try:
            return Pem(place(file), base64.b64decode("".join(data.split()), validate=True))
        except (binascii.Error, ValueError):
            raise SourceError(path, f"{field} is not base64", "write PEM, encoded in base64") from None

    return Access(
        source=path,
        servers=(cluster.server.rstrip("/"),),
        ca=pem("certificate-authority-data", cluster.certificate_authority, cluster.certificate_authority_data),
        verify=not cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        proxy=cluster.proxy_url,
        token=user.token,
        token_file=place(user.token_file),
        username=user.username,
        password=user.password,
        certificate=pem("client-certificate-data", user.client_certificate, user.client_certificate_data),
        key=pem("client-key-data", user.client_key, user.client_key_data),
        plugin=user.exec,
        cwd=directory,
    )


def _check_server(source: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is none, a bracket too few
        good = False
    if not good:
        raise SourceError(
            source, f"the server's address is {without_password(url) or 'none'}", "write it as https://HOST:PORT"
        )


def without_password(url: str) -> str:
    """A URL to show."""
    scheme, separator, rest = url.rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def _without_nulls(value: Any, left: list[int]) -> Any:
    """In YAML, a name without a value is null; to kubectl it is as if it were not there. left: how many values there may
    yet be; aliases count as often as they are used."""
    left[0] -= 1
    if left[0] < 0:
        raise RecursionError
    if isinstance(value, dict):
        return {key: _without_nulls(item, left) for key, item in value.items() if item is not None}
    return [_without_nulls(item, left) for item in value] if isinstance(value, list) else value
