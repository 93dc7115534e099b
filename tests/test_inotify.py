"""Watching files starts no process."""

from __future__ import annotations

import subprocess
import sys


def test_no_process_is_started() -> None:
    code = (
        "import sys\n"
        "started = []\n"
        "sys.addaudithook(lambda event, args: started.append(event) if event in"
        " ('subprocess.Popen', 'os.posix_spawn', 'os.fork', 'os.exec', 'os.system') else None)\n"
        "from proxy.inotify import INotify, flags\n"
        "import tempfile, pathlib\n"
        "with tempfile.TemporaryDirectory() as name:\n"
        "    watch = INotify()\n"
        "    watch.add_watch(name, flags.CREATE)\n"
        "    pathlib.Path(name, 'x').touch()\n"
        "    print([event.name for event in watch.read(timeout=5000)], started)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "['x'] []\n", done.stderr
