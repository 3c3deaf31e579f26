"""From totals and heartbeats to the text that Prometheus reads.

Knows: families, fields of tallies, statuses of engines. Must not know: the broker, HTTP. An engine without a heartbeat
has no gauges; its totals stay, and go on when it is back. So no counter ever goes backwards by a little: they begin at
zero only where the broker began anew, and then all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from inference.serving.client import BUCKETS, SEPARATOR, SUM, WEB, EngineStatus
from playground.metrics.families import COUNTED, GAUGES, PREFIX, Family
from playground.verdicts import state_of

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """All that is shown. totals: by engine (WEB: of the web), its model and values by field.  gauges: by web process.
    now: Unix seconds."""

    engines: Sequence[EngineStatus]
    totals: Mapping[str, tuple[str, Mapping[str, float]]]
    gauges: Sequence[Mapping[str, float]]
    unclaimed: int
    now: float
    hang_timeout: float

    def collect(self) -> Iterator[Metric]:
        """As prometheus-client asks a registry."""
        gauges = self._gauge_samples()
        for family in GAUGES:
            shown = GaugeMetricFamily(PREFIX + family.name, family.help, labels=family.all_labels)
            for labels, value in gauges[family.name]:
                shown.add_metric(labels, value)
            yield shown
        counted = self._counted()
        for family in COUNTED:
            yield (_histogram if family.kind == "histogram" else _counter)(family, counted[family.name])

    def _gauge_samples(self) -> dict[str, list[tuple[Labels, float]]]:
        samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
        for engine in self.engines:
            own = (engine.model, engine.name)
            for name, more, value in self._of_engine(engine):
                samples[name].append(((*own, *more), value))
        sockets: dict[str, float] = defaultdict(float)
        for process in self.gauges:
            for kind, count in process.items():
                sockets[kind] += count
        samples["sockets_open"] = [((kind,), count) for kind, count in sorted(sockets.items())]
        samples["web_processes"] = [((), len(self.gauges))]
        samples["requests_unclaimed"] = [((), self.unclaimed)]
        return samples

    def _of_engine(self, engine: EngineStatus) -> Iterator[tuple[str, Labels, float]]:
        kv = engine.kv
        state = state_of(engine, self.now, self.hang_timeout)
        yield "num_requests_running", (), engine.running
        yield "num_requests_waiting", (), engine.waiting
        yield "kv_cache_usage_perc", (), kv["used"] / kv["total"] if kv.get("total") else 0.0
        for name in ("used", "cached", "free"):
            yield "kv_blocks", (name,), kv.get(name, 0)
        for name, word in (("ready", "ok"), *((word, word) for word in ("draining", "loading", "failed", "hung"))):
            yield "engine_state", (name,), float(state == word)
        yield "engine_busy", (), float(engine.busy)
        yield "engine_paused", (), float(engine.paused)
        yield "engine_progress_age_seconds", (), max(0.0, self.now - engine.progress_at) if engine.busy else 0.0
        if engine.epoch:
            yield "engine_start_time_seconds", (), engine.epoch

    def _counted(self) -> dict[str, dict[Labels, dict[str, float]]]:
        """By family and labels: a counter's value under "", or what a histogram's fields hold."""
        models = {name: model for name, (model, _) in self.totals.items() if name != WEB}
        models |= {engine.name: engine.model for engine in self.engines}
        kinds = {family.name: family for family in COUNTED}
        counted: dict[str, dict[Labels, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        for owner, (_, values) in self.totals.items():
            for field, value in values.items():
                name, *labels = field.split(SEPARATOR)
                family = kinds.get(name)
                if family is None:  # of another version
                    continue
                part = labels.pop() if family.kind == "histogram" else ""
                if family.of_engine:
                    engine = labels.pop(0) if owner == WEB else owner
                    labels = [models.get(engine, ""), engine, *labels]
                if len(labels) == len(family.all_labels):
                    held = counted[name][tuple(labels)]
                    held[part] = held.get(part, 0.0) + value
        return counted


def _counter(family: Family, samples: Mapping[Labels, Mapping[str, float]]) -> Metric:
    shown = CounterMetricFamily(PREFIX + family.name.removesuffix("_total"), family.help, labels=family.all_labels)
    for labels, held in sorted(samples.items()):
        shown.add_metric(labels, held[""])
    if not family.all_labels and not samples:
        shown.add_metric((), 0)
    return shown


def _histogram(family: Family, samples: Mapping[Labels, Mapping[str, float]]) -> Metric:
    shown = HistogramMetricFamily(PREFIX + family.name, family.help, labels=family.all_labels)
    bounds = [*map(str, BUCKETS[family.name]), "+Inf"]
    for labels, held in sorted(samples.items()):
        counts = accumulate(held.get(str(i), 0.0) for i in range(len(bounds)))
        shown.add_metric(labels, list(zip(bounds, counts, strict=True)), held.get(SUM, 0.0))
    return shown


def exposition(reading: Reading) -> tuple[bytes, str]:
    """The body and its content type. Always the plain format: in OpenMetrics prometheus-client writes an underscore for
    each colon of a name."""
    return generate_latest(reading), CONTENT_TYPE
