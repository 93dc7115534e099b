"""deploy/monitoring: the PrometheusRule from the rules, and the dashboard from its panels: python -m docs.generate_monitoring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

from docs.dashboard import dashboard

FOLDER: Final = Path(__file__).parents[1] / "deploy" / "monitoring"
RULES: Final = FOLDER / "rules.yaml"
PROMETHEUS_RULE: Final = FOLDER / "prometheusrule.yaml"
DASHBOARD: Final = FOLDER / "dashboard.json"

_HEAD: Final = """\
# rules.yaml for the Prometheus operator, made by `python -m docs.generate_monitoring`: change that file, and not this one.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: kube-proxy-nft
  namespace: kube-system
  labels:
    k8s-app: kube-proxy-nft
    # What the Prometheus of kube-prometheus selects.
    prometheus: k8s
    role: alert-rules
spec:
"""


def rules() -> dict[str, Any]:
    """rules.yaml, read."""
    found: dict[str, Any] = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return found


def prometheus_rule() -> str:
    text = RULES.read_text(encoding="utf-8")
    body = text[text.index("groups:") :]
    return _HEAD + "".join(f"  {line}" if line.strip() else line for line in body.splitlines(keepends=True))


def dashboard_json() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    PROMETHEUS_RULE.write_text(prometheus_rule(), encoding="utf-8")
    DASHBOARD.write_text(dashboard_json(), encoding="utf-8")
