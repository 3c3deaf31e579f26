"""Settings of the engine: plain data and their checks. The door for sampling parameters, too.

Knows: names, ranges and defaults. Must not know: torch, the web, where a value came from (environment, JSON, Python).
The web process imports this module, so nothing heavy may be imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.checks import Check, choice, flag, integer, number, optional
from inference.checks import ParameterError as ParameterError
from inference.params import SEED_LIMIT as SEED_LIMIT
from inference.params import SamplingParams as SamplingParams

POLICIES = ("continuous", "dynamic", "static")


class RequestRefused(ValueError):
    """A request that can't be taken. `code` is one of the contract's error codes; the message has true numbers.
    retry_after: seconds until it may be sent again; None where the same request will be refused again."""

    def __init__(self, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an engine is started with. Each field is also the setting BATCHSCOPE_<FIELD IN UPPER CASE>.

    model: "smollm2" (the default model, fetched by `manage.py fetchmodel`), a folder with config.json and safetensors,
        a hub id ("org/name"), a .gguf file, or "scripted:FILE.json".
    device: "auto" (cuda where there is one), "cpu", "cuda".
    dtype: "auto", "float32", "bfloat16", "float16" (on a GPU only); what each does to the numbers: docs/precision.md.
    cuda_graphs: on a GPU, run decodes as recorded graphs.
    block_size: positions a KV block holds.  kv_blocks: blocks in the pool; None lets kv_memory decide.
    kv_memory: bytes for the pool where kv_blocks is None; None: 1 GiB on a CPU, on a GPU 90 % of what is free there.
    max_num_seqs: seats, i.e. requests in one iteration.  max_num_batched_tokens: the token budget of one iteration.
    prefill_chunk: tokens of one prompt computed in one iteration at most; None: half of the budget, so that a short
        prompt can pass a long one.
    inter_token_ms: the gap between two tokens that those who decode are to notice at most while prompts are computed
        beside them; chunks are cut to what fits it. None: chunks as long as prefill_chunk and the budget let them be.
    draft_tokens: tokens of one request that are guessed from what it has had and verified in one iteration; 0: none.
    draft_rows: tokens of an iteration with guesses in it, at most; with as many requests that decode there are none.
    max_model_len: prompt + answer at most; None takes the model's own limit.
    policy: "continuous", "dynamic", "static"; the last two run batches of `batch_size` requests (None: one a seat) to
        their end, and the dynamic one lets a batch fill for `batch_delay` seconds.
    prefix_caching: keep the KV of full blocks for prompts that begin alike.  prefix_sharing: between users as well.
    priority_ageing: seconds of waiting that raise a request by one step of priority.
    max_running_per_user: seats that one user may have at once; None: all.
    queue_timeout, run_timeout, total_timeout: seconds that a request may wait, run, and take in all; None: no limit.
    """

    model: str = "smollm2"
    device: str = "auto"
    dtype: str = "auto"
    cuda_graphs: bool = True
    block_size: int = 16
    kv_blocks: int | None = None
    kv_memory: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    prefill_chunk: int | None = None
    inter_token_ms: float | None = 100.0
    draft_tokens: int = 0
    draft_rows: int = 8
    max_model_len: int | None = None
    policy: str = "continuous"
    batch_size: int | None = None
    batch_delay: float = 0.2
    prefix_caching: bool = True
    prefix_sharing: bool = False
    priority_ageing: float = 10.0
    max_running_per_user: int | None = None
    queue_timeout: float | None = None
    run_timeout: float | None = None
    total_timeout: float | None = None
    model_cache: str = field(default="")  # folder for converted models; "" means <user cache>/batchscope

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ParameterError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, fewer than max_num_seqs, which is "
                f"{self.max_num_seqs}: each running request needs at least one token of the budget"
            )


_A_DAY = 86400.0
_CHECKS: dict[str, Check] = {
    "device": choice("auto", "cpu", "cuda"),
    "dtype": choice("auto", "float32", "bfloat16", "float16"),
    "cuda_graphs": flag,
    "policy": choice(*POLICIES),
    "block_size": integer(1, 256),
    "max_num_seqs": integer(1, 65536),
    "max_num_batched_tokens": integer(1, 1 << 20),
    "kv_memory": optional(integer(1 << 10, 1 << 50)),
    "kv_blocks": optional(integer(1, 1 << 30)),
    "inter_token_ms": optional(number(1.0, 600_000.0)),
    "prefill_chunk": optional(integer(1, 1 << 20)),
    "draft_tokens": integer(0, 16),
    "draft_rows": integer(1, 1024),
    "max_model_len": optional(integer(2, 1 << 30)),
    "batch_size": optional(integer(1, 65536)),
    "batch_delay": number(0.0, 3600.0),
    "prefix_caching": flag,
    "prefix_sharing": flag,
    "priority_ageing": number(0.001, _A_DAY),
    "max_running_per_user": optional(integer(1, 65536)),
    "queue_timeout": optional(number(0.001, 30 * _A_DAY)),
    "run_timeout": optional(number(0.001, 30 * _A_DAY)),
    "total_timeout": optional(number(0.001, 30 * _A_DAY)),
}
