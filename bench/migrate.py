"""How long a migration dry run takes: python -m bench.migrate [--services N] [--endpoints N] [--mode MODE] [--json]

In a network namespace of its own: an API server's stand-in in one process, the dry run in another, with what kube-proxy's
iptables mode would have in the kernel (MODE iptables-legacy: in that variant; none: nothing). Seconds of each phase, and of all; the peak of resident memory.
To put the rules there takes longer than to read them. Needs root. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import api_objects, iptables
from integration.apiserver import FakeApi

NODE_IP = "10.1.2.3"
CONFIG = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "clusterCIDR": "11.0.0.0/8",
}

Result = dict[str, Any]


def dry_run(kubeconfig: str, config: str) -> Result:
    """One, in this process."""
    from bench.load import memory
    from proxy.apiserver import Connection
    from proxy.migrate import bundle, command, judge, ours
    from proxy.migrate.gather import Wanted, gather
    from proxy.migrate.proof import prove

    began = time.perf_counter()
    phase, since = "start", began
    phases: dict[str, float] = {}
    peaks: dict[str, float] = {}

    def tell(what: str, _count: int) -> None:
        nonlocal phase, since
        now = time.perf_counter()
        phases[phase] = phases.get(phase, 0.0) + now - since
        peaks[phase] = memory("VmHWM")
        phase, since = what, now

    wanted = Wanted(kubeconfig=kubeconfig, config=config, node=api_objects.NODE, here=True)
    facts = gather(wanted, connect=Connection, progress=tell)
    tell("our own entries", 0)
    made = ours.read(facts)
    tell("operations", 0)
    operations = ours.operations(made)
    tell("proof", 0)
    proof = prove(operations)
    del operations
    tell("judgement", 0)
    report = judge.report(facts, proof, made)
    tell("", 0)
    whole, peak = time.perf_counter() - began, memory("VmHWM")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    outputs: dict[str, float] = {}
    for form in ("text", "json", "html"):
        started = time.perf_counter()
        command.render(report, form)
        outputs[form] = time.perf_counter() - started
    started = time.perf_counter()
    size = len(bundle.encode(facts))
    return {
        "seconds": whole,
        "cpu_seconds": [round(one.ru_utime + one.ru_stime, 2) for one in used],
        "peak_mb": peak,
        "peak_with_outputs_mb": memory("VmHWM"),
        "phases": {name: round(seconds, 2) for name, seconds in phases.items()},
        "peaks": {name: round(value) for name, value in peaks.items()},
        "outputs": {name: round(seconds, 2) for name, seconds in outputs.items()},
        "bundle": {"seconds": round(time.perf_counter() - started, 2), "bytes": size},
        "proof": {"status": proof.status, "detail": proof.detail, "ms": proof.milliseconds, "elements": proof.elements},
        "results": report.counts.results,
        "gaps": [f"{gap.what}: {gap.cause}" for gap in report.gaps],
        "dataplanes": {d.mode: len(d.entries) for d in facts.dataplanes},
    }


def measure(services: int, endpoints: int, mode: str) -> Result:
    """In this process's network namespace."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "addr", "add", f"{NODE_IP}/32", "dev", "lo"], check=True)
    if mode != "none":
        rules = iptables.save(services, endpoints)
        program = "iptables-legacy-restore" if mode == "iptables-legacy" else "iptables-nft-restore"
        subprocess.run([program], input=rules, text=True, check=True)
        del rules
    api = FakeApi()
    for obj in api_objects.objects(services, endpoints):
        api.put(obj)
    api.compact()
    with api, tempfile.TemporaryDirectory() as directory:
        kubeconfig = api.kubeconfig(Path(directory, "kubeconfig"))
        config = Path(directory, "config.conf")
        config.write_text(json.dumps(CONFIG | ({"mode": "iptables"} if mode != "none" else {})))
        code = "import sys, json; from bench.migrate import dry_run; print(json.dumps(dry_run(*sys.argv[1:])))"
        done = subprocess.run(
            [sys.executable, "-c", code, kubeconfig, str(config)], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: Result = json.loads(done.stdout.splitlines()[-1])
    return {"services": services, "endpoints": endpoints, "mode": mode} | found


def table(result: Result) -> str:
    """For people."""
    lines = [f"{result['services']:,} Services x {result['endpoints']}, live rules: {result['mode']}"]
    lines.append(f"whole dry run: {result['seconds']:.1f} s, {result['peak_mb']:.0f} MB at its peak")
    lines.append(f"CPU seconds, its own and of the programs that it runs: {result['cpu_seconds']}")
    lines += [
        f"  {seconds:6.2f} s  {result['peaks'][name]:4d} MB  {name}" for name, seconds in result["phases"].items()
    ]
    lines += [f"  {seconds:6.2f} s  written as {name}" for name, seconds in result["outputs"].items()]
    bundle = result["bundle"]
    lines.append(f"  {bundle['seconds']:6.2f} s  bundle, {bundle['bytes'] / 1e6:.1f} MB")
    lines.append(f"proof: {result['proof']}; results: {result['results']}; live entries: {result['dataplanes']}")
    return "\n".join(lines + [f"not read: {gap}" for gap in result["gaps"]])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.migrate", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--services", type=int, default=10_000)
    parser.add_argument("--endpoints", type=int, default=10)
    parser.add_argument("--mode", choices=["iptables", "iptables-legacy", "none"], default="iptables")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if os.environ.get("BENCH_INSIDE") != "yes":
        inside = ["unshare", "--net", sys.executable, "-m", "bench.migrate", *(sys.argv[1:] if argv is None else argv)]
        return subprocess.run(inside, env=os.environ | {"BENCH_INSIDE": "yes"}).returncode
    result = measure(options.services, options.endpoints, options.mode)
    print(json.dumps(result) if options.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
