"""The snapshot in Prometheus' text format. Nothing is counted here: the snapshot has the totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST

# Name, help, key in a model's `totals`.
_COUNTERS = (
    ("homespecd_requests", "Requests that ended, well or not.", "requests"),
    ("homespecd_request_failures", "Requests that ended with an error.", "failures"),
    ("homespecd_prompt_tokens", "Prompt tokens of answered requests.", "prompt_tokens"),
    ("homespecd_completion_tokens", "Tokens generated.", "completion_tokens"),
    ("homespecd_rounds", "Rounds of decoding.", "rounds"),
    ("homespecd_draft_tokens_proposed", "Tokens that drafters proposed.", "proposed"),
    ("homespecd_draft_tokens_accepted", "Proposed tokens that were accepted.", "accepted"),
)
# Name, help, key of a model.
_GAUGES = (
    ("homespecd_requests_active", "Requests being answered.", "active"),
    ("homespecd_requests_waiting", "Requests waiting for a slot or a load.", "waiting"),
    ("homespecd_model_memory_bytes", "Memory held for the model.", "memory_bytes"),
)


def render(snapshot: Mapping[str, Any]) -> bytes:
    """The whole page for one scrape."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(snapshot))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, snapshot: Mapping[str, Any]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        models = self._snapshot["models"]
        for name, text, key in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["model"])
            for model in models:
                counter.add_metric([model["name"]], model["totals"][key])
            yield counter
        for name, text, key in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["model"])
            for model in models:
                gauge.add_metric([model["name"]], model[key] or 0)
            yield gauge
        loaded = GaugeMetricFamily(
            "homespecd_model_ready", "1 while the model is in memory.", labels=["model"]
        )
        for model in models:
            loaded.add_metric([model["name"]], float(model["state"] == "ready"))
        yield loaded
        memory = self._snapshot["memory"]
        yield GaugeMetricFamily(
            "homespecd_memory_used_bytes", "Memory held by all models.", memory["used_bytes"]
        )
        yield GaugeMetricFamily(
            "homespecd_memory_cap_bytes", "Memory the service may hold.", memory["cap_bytes"]
        )
        yield GaugeMetricFamily(
            "homespecd_uptime_seconds", "Time since the start.", self._snapshot["uptime_s"]
        )
