"""From settings to a scheduler.

Knows: the settings' names and units. Must not know: models, torch.
"""

from __future__ import annotations

from inference.config import POLICIES, EngineConfig, ParameterError
from inference.scheduling.blocks import BlockPool
from inference.scheduling.deadlines import Deadlines
from inference.scheduling.drafts import Drafting
from inference.scheduling.kv_manager import KVManager
from inference.scheduling.pace import Pace
from inference.scheduling.policies import BatchingPolicy, make_policy
from inference.scheduling.scheduler import Scheduler
from inference.scheduling.waiting_queue import WaitingQueue


def new_scheduler(config: EngineConfig, pool: BlockPool, max_model_len: int) -> Scheduler:
    """The scheduler that `config` asks for, over `pool`."""
    limits = (config.queue_timeout, config.run_timeout, config.total_timeout)
    return Scheduler(
        KVManager(pool, config.prefix_caching, config.prefix_sharing),
        config.max_num_seqs,
        config.max_num_batched_tokens,
        max_model_len,
        new_policy(config, config.policy),
        config.prefill_chunk,
        WaitingQueue(config.priority_ageing * 1000, config.max_running_per_user),
        Deadlines(*(None if limit is None else limit * 1000 for limit in limits)),
        Pace(config.inter_token_ms),
        Drafting(config.draft_tokens, config.draft_rows),
    )


def new_policy(config: EngineConfig, name: str) -> BatchingPolicy:
    """The policy `name` with the settings' batch size and delay. Raises ParameterError for a name that is none."""
    if name not in POLICIES:
        raise ParameterError(f"policy is {name!r}; it must be one of: {', '.join(POLICIES)}")
    size = min(config.batch_size or config.max_num_seqs, config.max_num_seqs)
    return make_policy(name, size, config.batch_delay * 1000)
