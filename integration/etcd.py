"""An etcd for a real API server: 3.4 or newer, alone, on 127.0.0.1, over HTTP."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from integration.processes import ServerProcess, free_port

START_PATIENCE = 30.0
_ANY_KEY = "AA=="  # base64 of one zero byte; a lookup of it tells the revision
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Etcd:
    """`binary` is the program; data and log are kept in `directory`."""

    def __init__(self, binary: Path, directory: Path) -> None:
        self._binary, self._directory = binary, directory
        self._process: ServerProcess | None = None
        self.url = ""

    def start(self) -> None:
        """Returns when it answers. Raises UserError with the end of its log when it does not."""
        self.url, peers = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        argv = [
            str(self._binary),
            "--name=default",
            f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ]
        if self._knows("unsafe-no-fsync"):  # from 3.5 on
            argv.append("--unsafe-no-fsync=true")
        self._process = ServerProcess(argv, self._directory / "etcd.log")
        self._process.wait_for(self._healthy, START_PATIENCE)

    def stop(self) -> None:
        if self._process:
            self._process.stop()

    @property
    def version(self) -> tuple[int, ...]:
        """As (3, 6, 5)."""
        text = str(self._ask("/version")["etcdserver"]).partition("-")[0]
        return tuple(int(part) for part in text.split("."))

    def compact(self) -> None:
        """Forget all revisions but the newest."""
        revision = self._ask("/v3/kv/range", {"key": _ANY_KEY})["header"]["revision"]
        try:
            self._ask("/v3/kv/compaction", {"revision": revision, "physical": True})
        except OSError as e:
            if "has been compacted" not in str(e):  # nothing happened since the last time
                raise

    def _healthy(self) -> bool:
        try:
            return self._ask("/health").get("health") in ("true", True)
        except (OSError, ValueError):
            return False

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        try:
            with _OPENER.open(urllib.request.Request(self.url + path, data), timeout=10) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found
        except urllib.error.HTTPError as e:
            raise OSError(f"etcd: {path}: {e.code}: {e.read().decode(errors='replace')}") from None

    def _knows(self, flag: str) -> bool:
        done = subprocess.run([self._binary, "--help"], capture_output=True, text=True, timeout=30)
        return f"--{flag}" in done.stdout + done.stderr
