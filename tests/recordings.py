"""The exchanges with a real API server in tests/data/api: '>' the request, '<' the answer's head, then its body; of a
watch each line with the second at which it came."""

from __future__ import annotations

import re
from pathlib import Path

DATA = Path(__file__).parent / "data" / "api"
_TIME = re.compile(rb"^\[[0-9.]+ s\] ")
_END = b"(the server ended the answer)"


class Exchange:
    """One of them, by the number that its file's name begins with."""

    def __init__(self, number: str) -> None:
        (self.file,) = DATA.glob(f"{number}-*.txt")
        head, _, rest = self.file.read_bytes().partition(b"\n\n")
        lines = head.decode().splitlines()
        asked = [line[2:] for line in lines if line.startswith(">")]
        answered = [line[2:] for line in lines if line.startswith("<")]
        self.method, self.path = asked[0].split()
        self.request_headers = dict(line.split(": ", 1) for line in asked[1:] if re.match(r"[\w-]+: ", line))
        self.request_body = next((line.encode() for line in asked if line.startswith("{")), None)
        self.status = int(answered[0].split()[0])
        self.headers: dict[str, str] = {}
        for line in answered[1:]:
            name, value = line.split(": ", 1)
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        if rest.startswith(b"["):
            timed = [_TIME.sub(b"", line) for line in rest.splitlines() if _TIME.match(line)]
            self.body = b"".join(line + b"\n" for line in timed if line != _END)
        else:
            self.body = rest.rstrip(b"\n") + (b"" if self.method == "GET" and "version" in self.path else b"\n")


def numbers() -> list[str]:
    """Of all of them."""
    return sorted(file.name.split("-")[0] for file in DATA.glob("*.txt"))
