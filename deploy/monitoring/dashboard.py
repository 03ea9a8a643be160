"""Write the dashboard for Grafana.

    python deploy/monitoring/dashboard.py > deploy/monitoring/dashboard.json

A list of panels is easier to read and to change than what Grafana wants. A test compares the file with what
this writes, and the names of the metrics with what /metrics serves.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

#: Columns of Grafana's grid, and the height of a row of panels.
COLUMNS, HEIGHT = 24, 8


class Panel(NamedTuple):
    """One graph, or one number."""

    title: str
    #: Legend → expression.
    queries: dict[str, str]
    unit: str = "short"
    #: A number in place of a graph.
    is_stat: bool = False


def rate(name: str) -> str:
    """So many a second, summed over the terminals that are chosen."""
    return rate_by("instance", name)


def rate_by(label: str, name: str) -> str:
    """So many a second, for each value of a label."""
    return f'sum by ({label}) (rate({name}{{instance=~"$instance"}}[$__rate_interval]))'


def now(name: str, by: str = "instance") -> str:
    """The value now."""
    return f'sum by ({by}) ({name}{{instance=~"$instance"}})'


def largest(expression: str) -> str:
    """The ten largest: there may be thousands."""
    return f"topk(10, {expression})"


ROWS: list[tuple[str, list[Panel]]] = [
    (
        "Health",
        [
            Panel("Up", {"{{instance}}": 'up{job="landbridge",instance=~"$instance"}'}, is_stat=True),
            Panel("Refuses messages", {"{{instance}}": now("landbridge_store_low")}, is_stat=True),
            Panel("Damage", {"{{instance}}": now("landbridge_damage_findings")}, is_stat=True),
            Panel(
                "Free on the disk", {"{{instance}}": now("landbridge_disk_free_bytes")}, "bytes", is_stat=True
            ),
        ],
    ),
    (
        "Messages",
        [
            Panel(
                "In and out",
                {
                    "published {{instance}}": rate("landbridge_published_total"),
                    "delivered {{instance}}": rate("landbridge_delivered_total"),
                    "acked {{instance}}": rate("landbridge_acked_total"),
                },
                "ops",
            ),
            Panel(
                "Failures",
                {
                    "requeued {{instance}}": rate("landbridge_requeued_total"),
                    "buried {{instance}}": rate("landbridge_buried_total"),
                    "refused {{instance}}": rate("landbridge_refused_total"),
                    "forbidden {{instance}}": rate("landbridge_forbidden_total"),
                },
                "ops",
            ),
            Panel("Commits", {"{{instance}}": rate("landbridge_commits_total")}, "ops"),
        ],
    ),
    (
        "Topics and groups",
        [
            Panel(
                "Largest lags", {"{{topic}} {{group}}": largest(now("landbridge_group_lag", "topic, group"))}
            ),
            Panel(
                "Busiest topics",
                {"{{topic}}": largest(rate_by("topic", "landbridge_topic_messages_total"))},
                "ops",
            ),
            Panel("Largest topics", {"{{topic}}": largest(now("landbridge_topic_bytes", "topic"))}, "bytes"),
        ],
    ),
    (
        "The process",
        [
            Panel("Connections", {"{{instance}}": now("landbridge_connections")}),
            Panel("Topics", {"{{instance}}": now("landbridge_topics")}),
            Panel("Batches in memory", {"{{instance}}": now("landbridge_cache_bytes")}, "bytes"),
            Panel("Paused by operators", {"{{what}}": now("landbridge_paused", "what")}),
        ],
    ),
    (
        "Nodes of one terminal",
        [
            Panel("Units", {"{{node}}": now("landbridge_node_units", "node")}),
            Panel("Units at no node", {"{{instance}}": now("landbridge_units_free")}, is_stat=True),
            Panel("What is left of a lease", {"{{node}}": now("landbridge_node_lease_seconds", "node")}, "s"),
            Panel(
                "Late commits refused", {"{{node}}": rate_by("node", "landbridge_node_fenced_total")}, "ops"
            ),
        ],
    ),
    (
        "Gateways",
        [
            Panel(
                "Webhooks",
                {
                    "taken {{webhook}}": rate_by("webhook", "landbridge_webhook_delivered_total"),
                    "failed {{webhook}}": rate_by("webhook", "landbridge_webhook_failures_total"),
                },
                "ops",
            ),
            Panel(
                "MQTT messages",
                {
                    "from clients {{instance}}": rate("landbridge_mqtt_received_total"),
                    "to clients {{instance}}": rate("landbridge_mqtt_delivered_total"),
                    "dropped {{instance}}": rate("landbridge_mqtt_dropped_total"),
                    "refused {{instance}}": rate("landbridge_mqtt_refused_total"),
                },
                "ops",
            ),
            Panel(
                "MQTT clients",
                {
                    "clients {{instance}}": now("landbridge_mqtt_clients"),
                    "sessions {{instance}}": now("landbridge_mqtt_sessions"),
                    "in flight {{instance}}": now("landbridge_mqtt_in_flight"),
                    "retained {{instance}}": now("landbridge_mqtt_retained"),
                },
            ),
        ],
    ),
]

SOURCE = {"type": "prometheus", "uid": "${source}"}


def panel(id: int, spec: Panel, x: int, y: int, width: int) -> dict[str, Any]:
    """A panel as Grafana has it."""
    defaults: dict[str, Any] = {"unit": spec.unit, "min": 0}
    made: dict[str, Any] = {
        "id": id,
        "type": "stat" if spec.is_stat else "timeseries",
        "title": spec.title,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": width, "h": HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for index, (legend, expression) in enumerate(spec.queries.items())
        ],
    }
    if not spec.is_stat:
        made["options"] = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi"},
        }
    return made


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, specs in ROWS:
        panels.append({
            "id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
        })  # fmt: skip
        y += 1
        width = COLUMNS // len(specs)
        for index, spec in enumerate(specs):
            panels.append(panel(len(panels) + 1, spec, index * width, y, width))
        y += HEIGHT
    return {
        "uid": "landbridge",
        "title": "Landbridge",
        "tags": ["landbridge"],
        "schemaVersion": 39,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "label": "Terminal",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": "label_values(landbridge_connections, instance)",
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": panels,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=1) + "\n")
