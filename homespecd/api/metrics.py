"""The snapshot in Prometheus' text format. Nothing is counted here: the snapshot has the totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST

Models = Sequence[Mapping[str, Any]]

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

# Name, help, key in a model's `timings`.
_HISTOGRAMS = (
    ("homespecd_first_token_seconds", "From a request to its first token.", "first_token_s"),
    ("homespecd_token_seconds", "Per token after the first.", "token_s"),
)
# Name, help, key of a client.
_OF_CLIENTS = (
    ("homespecd_client_requests", "Requests that were let in.", "requests"),
    ("homespecd_client_completion_tokens", "Tokens generated.", "completion_tokens"),
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
        yield from self._loads(models)
        yield from self._timings(models)
        yield from self._speculation(models)
        yield from self._clients(self._snapshot["clients"])
        yield from self._config(self._snapshot["config"])
        memory = self._snapshot["memory"]
        yield GaugeMetricFamily(
            "homespecd_memory_used_bytes", "Memory held by all models.", memory["used_bytes"]
        )
        yield GaugeMetricFamily(
            "homespecd_memory_cap_bytes", "Memory the service may hold.", memory["cap_bytes"]
        )
        lag = self._snapshot["loop_lag_s"]
        yield HistogramMetricFamily(
            "homespecd_loop_lag_seconds",
            "How late the event loop was, looked at a few times a second while it has work.",
            buckets=list(lag["buckets"].items()),
            sum_value=lag["sum"],
        )
        yield GaugeMetricFamily(
            "homespecd_uptime_seconds", "Time since the start.", self._snapshot["uptime_s"]
        )

    def _loads(self, models: Models) -> Iterable[Metric]:
        loads = CounterMetricFamily(
            "homespecd_model_loads", "Times the model was loaded.", labels=["model"]
        )
        for model in models:
            loads.add_metric([model["name"]], model["loads"])
        yield loads

    def _timings(self, models: Models) -> Iterable[Metric]:
        for name, text, key in _HISTOGRAMS:
            histogram = HistogramMetricFamily(name, text, labels=["model"])
            for model in models:
                timing = model["timings"][key]
                buckets = list(timing["buckets"].items())
                histogram.add_metric([model["name"]], buckets, sum_value=timing["sum"])
            yield histogram

    def _speculation(self, models: Models) -> Iterable[Metric]:
        speedup = GaugeMetricFamily(
            "homespecd_drafter_speedup",
            "Plain over speculative time per token, as measured.",
            labels=["model", "drafter"],
        )
        acceptance = GaugeMetricFamily(
            "homespecd_drafter_acceptance_rate",
            "Accepted over proposed tokens.",
            labels=["model", "drafter"],
        )
        for model in models:
            for drafter in model["speculation"]["drafters"]:
                labels = [model["name"], drafter["name"]]
                if drafter.get("speedup") is not None:
                    speedup.add_metric(labels, drafter["speedup"])
                if drafter.get("acceptance_rate") is not None:
                    acceptance.add_metric(labels, drafter["acceptance_rate"])
        yield speedup
        yield acceptance

    def _clients(self, clients: Sequence[Mapping[str, Any]]) -> Iterable[Metric]:
        for name, text, key in _OF_CLIENTS:
            counter = CounterMetricFamily(name, text, labels=["uid"])
            for client in clients:
                uid = "tcp" if client["uid"] is None else str(client["uid"])
                counter.add_metric([uid], client[key])
            yield counter

    def _config(self, config: Mapping[str, Any]) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "homespecd_config_generation",
            "How many configurations have been in use since the start.",
            config["generation"],
        )
        yield GaugeMetricFamily(
            "homespecd_config_last_reload_successful",
            "0 while the last reload was refused.",
            float(config["last_error"] is None),
        )
