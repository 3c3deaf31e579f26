"""Every metric by name: what it is, which labels it has, who counts it. docs/metrics.md is the same for people.

Knows: names. Must not know: values, the format in which they are shown. The names begin with `batchscope:`; where vLLM
has the same one under `vllm:`, it means the same, so that boards map over by their prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "batchscope:"
ENGINE_LABELS = ("model_name", "engine")  # of every metric that is an engine's, as vLLM's


@dataclass(frozen=True, slots=True)
class Family:
    """kind: "counter", "histogram" or "gauge".  labels: beside those of the engine; of_engine: whether it has those."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    of_engine: bool = True

    @property
    def all_labels(self) -> tuple[str, ...]:
        return (*(ENGINE_LABELS if self.of_engine else ()), *self.labels)


GAUGES = (
    Family("num_requests_running", "gauge", "Requests in the newest iteration."),
    Family("num_requests_waiting", "gauge", "Requests that wait in the engine."),
    Family("kv_cache_usage_perc", "gauge", "Part of the KV blocks that requests hold, 0 to 1."),
    Family("kv_blocks", "gauge", "KV blocks by state: used, cached, free.", ("state",)),
    Family(
        "engine_state", "gauge", "1 for the state that it is in: ready, draining, loading, failed, hung.", ("state",)
    ),
    Family("engine_busy", "gauge", "1 while it has work."),
    Family("engine_paused", "gauge", "1 while staff has paused it."),
    Family("engine_progress_age_seconds", "gauge", "Since the last finished iteration, while it has work; else 0."),
    Family("engine_start_time_seconds", "gauge", "When the engine's process started, about, in Unix seconds."),
    Family("requests_unclaimed", "gauge", "Accepted requests that no engine has taken yet.", of_engine=False),
    Family("sockets_open", "gauge", "Open sockets of all web processes, by kind.", ("kind",), of_engine=False),
    Family("web_processes", "gauge", "Web processes that live.", of_engine=False),
)

COUNTED = (
    # by the engines
    Family("prompt_tokens_total", "counter", "Tokens of prompts, those from the prefix cache included."),
    Family("generation_tokens_total", "counter", "Tokens of answers."),
    Family("prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the prefix cache."),
    Family("prefix_cache_hits_total", "counter", "Prompt tokens that were found in the prefix cache."),
    Family("num_preemptions_total", "counter", "Requests that lost their blocks, to be computed again."),
    Family("time_to_first_token_seconds", "histogram", "From a request's arrival until its first text was computed."),
    Family("inter_token_latency_seconds", "histogram", "Between two pieces of an answer, as they were computed."),
    Family("iteration_tokens_total", "histogram", "Tokens computed in one iteration."),
    Family("iteration_seconds", "histogram", "An iteration's phases: schedule, forward, sample, commit.", ("phase",)),
    Family("engine_starts_total", "counter", "Processes of this engine that came to be ready."),
    # by the web, where a request's row gets its final state
    Family("request_success_total", "counter", "Requests that ended, by how; errors too.", ("finished_reason",)),
    Family("request_failure_total", "counter", "Requests that ended with an error or a limit, by code.", ("code",)),
    Family("request_prompt_tokens", "histogram", "Tokens of the prompt of a request that ended."),
    Family("request_generation_tokens", "histogram", "Tokens of the answer of a request that ended."),
    Family("e2e_request_latency_seconds", "histogram", "From a request's arrival to its last token."),
    Family("request_queue_time_seconds", "histogram", "Of that: before it ran."),
    Family("request_inference_time_seconds", "histogram", "Of that: since it ran."),
    Family("request_prefill_time_seconds", "histogram", "Computing its own prompt."),
    Family("request_decode_time_seconds", "histogram", "From its first token to its last."),
    Family("request_time_per_output_token_seconds", "histogram", "The same, for each token after the first."),
    Family("request_time_seconds_total", "counter", "Where the time of requests went: parts of receipts.", ("part",)),
    Family("faults_total", "counter", "Warnings and errors in the logs, by their code.", ("code",)),
    # by the web alone
    Family(
        "client_time_to_first_token_seconds",
        "histogram",
        "From a request's arrival until its first text was handed to its reader.",
        of_engine=False,
    ),
    Family("requests_accepted_total", "counter", "Requests that were accepted: they have a row.", of_engine=False),
    Family(
        "requests_refused_total", "counter", "Requests that were not accepted, by code.", ("code",), of_engine=False
    ),
    Family("requests_put_back_total", "counter", "Accepted requests that the broker had lost.", of_engine=False),
    Family("errors_total", "counter", "Errors that were answered, by code, over HTTP and sockets.", ("code",), False),
    Family("deltas_sent_total", "counter", "Pieces of answers that were sent.", of_engine=False),
    Family("sockets_opened_total", "counter", "Sockets that were opened.", ("kind",), of_engine=False),
    Family("sockets_closed_total", "counter", "Sockets that were closed, by code.", ("kind", "code"), of_engine=False),
)
