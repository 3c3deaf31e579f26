"""One real-looking example of each message, in the order of a talk. Tests read each with the model it is for."""

from __future__ import annotations

from typing import Any

_ID = "0e9f5c1a-7d1c-4a55-9a0b-2f6a3f0d8c11"
_RECEIPT = {
    **{"queue": 3.1, "prefill": 5.2, "decode": 21.5, "batchmates": 1.8, "preempted": 0.0, "stalled": 0.0},
    **{"deliver": 0.6, "total": 32.2},
    "details": {
        "queue": {"accept": 2.4, "iteration": 0.7},
        **{"batchmates": [], "caused": 0.9, "preemptions": 0, "ttft": 9.4},
        **{"first_iteration": 4120, "last_iteration": 4126},
    },
}
_ROW = {"request_id": _ID, "seat": 3, "kind": "decode", "tokens": 1, "context": 24, "blocks": 2}
_WAITING = {"request_id": "c1d5ac0e-0f7b-4b8e-8f0e-5a0f0a4f6c52", "reason": "no_kv"}
_KV = {"free": 3980, "cached": 90, "used": 26, "total": 4096}
_RECORD = {
    **{"n": 4121, "epoch": 1795917600, "started_at": 1795917655.25, "t0": 55250.1},
    **{"schedule": 0.05, "forward": 5.1, "sample": 0.3, "commit": 0.1, "policy": "continuous"},
    **{"rows": [{**_ROW, "drafted": 0, "accepted": 0}], "waiting_total": 1},
    "waiting": [{**_WAITING, "detail": "needs 12 blocks, 9 are free", "tokens": 190, "since": 54120.4}],
    **{"preempted": [], "finished": [], "kv": _KV, "budget": {"used": 1, "limit": 512}},
    **{"seats": 64, "idle": [], "padding": 0, "blocks": [[17, 1, 0, _ID]]},
}
_ENGINE = {
    **{"engine": "engine-1", "state": "ready", "busy": True, "model": "SmolLM2-135M-Instruct", "epoch": 1795917600},
    **{"settings": {"policy": "continuous", "max_num_seqs": 64}, "costs": {"fixed": 4.8}, "paused": False},
    **{"slow_ms": 0.0, "refused": None, "kv": _KV, "running": _RECORD["rows"], "waiting": _RECORD["waiting"]},
    **{"waiting_total": 1, "records": [_RECORD], "blocks": None},
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "generate": {
        **{"type": "generate", "ref": "first"},
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "params": {"max_tokens": 64, "temperature": 0},
    },
    "resume": {"type": "resume", "request_id": _ID, "after_seq": 2},
    "cancel": {"type": "cancel", "request_id": _ID},
    "ack": {"type": "ack", "request_id": _ID, "seq": 2},
    "ping": {"type": "ping", "t": 1795917655250},
    "hello": {
        **{"type": "hello", "protocol": 1, "model": "SmolLM2-135M-Instruct"},
        "limits": {"message_bytes": 262144, "messages": 1000, "max_model_len": 2048},
    },
    "accepted": {"type": "accepted", "ref": "first", "request_id": _ID, "position": 0},
    "queued": {"type": "queued", "request_id": _ID, "position": 2, "reason": "no_seat", "eta_ms": 1500.0},
    "delta": {"type": "delta", "request_id": _ID, "seq": 1, "text": " Paris", "tokens": 1, "iteration": 4121},
    "finished": {
        **{"type": "finished", "request_id": _ID, "seq": 3, "finish_reason": "stop", "receipt": _RECEIPT},
        "usage": {"prompt_tokens": 37, "completion_tokens": 3, "cached_tokens": 16},
    },
    "error": {
        **{"type": "error", "code": "bad_params", "ref": "first"},
        "message": "top_p is 1.5; it must be from 0 to 1",
    },
    "pong": {"type": "pong", "t": 1795917655250},
    "draining": {"type": "draining"},
    "snapshot": {"type": "snapshot", "engines": [_ENGINE]},
    "iterations": {"type": "iterations", "engine": "engine-1", "records": [_RECORD]},
    "blocks": {
        **{"type": "blocks", "engine": "engine-1", "epoch": 1795917600, "n": 4121, "start": 0, "total": 3},
        **{"blocks": [[0, 0, -1], [2, 1, 0], [1, 0, 1]], "owners": [_ID, _WAITING["request_id"]]},
    },
}
