"""Decoders of transformers, whatever their architecture, over our paged KV cache.

Knows: how a model of transformers is called. Must not know: architectures by name, requests, scheduling.
Nothing is believed of a model that a trial at load can tell: one pass with a probe in place of its attention shows its
layers and what they ask for, and then the logits of a few tokens must be those of transformers' own attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from inference.execution.batch import Batch
from inference.execution.cache import KVCache
from inference.execution.device_batch import Placer
from inference.execution.models import foreign_attention as paged
from inference.execution.models.decoder_config import end_ids
from inference.execution.models.errors import ModelError
from inference.execution.models.foreign_check import check_logits, trial_sequences
from inference.execution.models.foreign_folder import first_line, load_pretrained, quiet
from inference.execution.models.foreign_limits import model_len
from inference.execution.models.foreign_linear import pack_linears, sharpen_head
from inference.execution.models.foreign_probe import LayerCall, Probe
from kernels import ops

PROBE_TOKENS = 5


class ForeignModel:
    """A model of transformers. Answers to `models.protocol.Model`. `model` has attention that `attach` serves."""

    def __init__(
        self,
        model: Any,
        layers: Sequence[LayerCall],
        dtype: torch.dtype,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.eos_token_ids = eos_token_ids
        self.dtype, self.device = dtype, model.device
        self._placer = Placer(model.device)
        self._model, self._layers = model, layers
        self._attention = paged.PagedAttention(len(layers))
        paged.attach(model, self._attention)
        sharpen_head(model)
        pack_linears(model)
        self._keeps_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        layers = [
            ops.new_kv_cache(num_blocks, block_size, layer.kv_heads, layer.head_dim, self.dtype, self.device)
            for layer in self._layers
        ]
        return KVCache(layers, num_blocks, block_size)

    def kv_bytes_per_block(self, block_size: int) -> int:
        return 2 * block_size * self.dtype.itemsize * sum(layer.kv_heads * layer.head_dim for layer in self._layers)

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """Logits float32 [S, vocab_size] of batch.logits_rows; writes the KV of all T rows.

        To transformers the batch is one sequence of T tokens; only positions and attention tell whose they are.
        """
        inputs = self._placer.place(batch)
        # Not all models take zero rows: a chunk that wants no logits computes one and drops it.
        rows = inputs.logits_rows if len(batch.logits_rows) else inputs.logits_rows.new_zeros(1)
        with self._attention.batch(inputs, cache):
            logits = _logits(
                self._model,
                inputs.token_ids,
                inputs.positions,
                **({"logits_to_keep": rows} if self._keeps_rows else {}),
            )
        return (logits if self._keeps_rows else logits[rows])[: len(batch.logits_rows)].float()


def load_foreign(folder: Path, dtype: torch.dtype, device: torch.device, max_model_len: int | None) -> ForeignModel:
    """The model of a folder, after its trial. Raises ModelError with one sentence where it can't be run right."""
    paged.register()
    with quiet():
        model = load_pretrained(folder, dtype, device)
        try:
            with torch.inference_mode():
                return _try_out(model, folder, dtype, max_model_len)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"{model.config.model_type} models can't be run here: {first_line(error)}") from error


def _try_out(model: Any, folder: Path, dtype: torch.dtype, max_model_len: int | None) -> ForeignModel:
    layers = _probe(model)
    windows = [layer.window for layer in layers if layer.window is not None]
    readable = model.get_input_embeddings().num_embeddings
    longest = model_len(model.config, windows, max_model_len)
    sequences = trial_sequences(readable, longest)
    expected = _own_logits(model, "eager", sequences)
    otherwise = _own_logits(model, "sdpa", sequences) if dtype != torch.float32 else None
    if expected is None:
        raise ModelError(f"{model.config.model_type} models can't be run here: they have no eager attention.")
    if expected.shape[1] > readable:
        raise ModelError(f"the model writes {expected.shape[1]} kinds of tokens and reads {readable} of them only.")
    model.set_attn_implementation(paged.PAGED)
    vocab_size = expected.shape[1]
    foreign = ForeignModel(model, layers, dtype, vocab_size, longest, end_ids(folder, vocab_size))
    check_logits(foreign, dtype, sequences, expected, otherwise)
    return foreign


def _own_logits(model: Any, attention: str, sequences: list[list[int]]) -> torch.Tensor | None:
    """Float32 logits of the sequences, one after the other, with an attention of transformers; None if it lacks it."""
    try:
        model.set_attn_implementation(attention)
    except (ValueError, ImportError):
        return None
    return torch.cat([_logits(model, *_alone(model, ids)).float() for ids in sequences])


def _probe(model: Any) -> list[LayerCall]:
    """What the layers ask of attention. Raises ModelError where it can't be done, or not all of them ask."""
    kind, depth = model.config.model_type, getattr(model.config, "num_hidden_layers", 1)
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise ModelError(f"{kind} models can't be run here: they count positions by themselves.")
    probe = Probe(PROBE_TOKENS)
    paged.attach(model, probe)
    model.set_attn_implementation(paged.PROBE)
    _logits(model, *_alone(model, [0] * PROBE_TOKENS))
    if not probe.calls:
        raise ModelError(f"{kind} models can't be run here: no layer of theirs uses transformers' attention interface.")
    if len(probe.calls) < depth:
        raise ModelError(
            f"{kind} models can't be run here: {depth - len(probe.calls)} of {depth} layers are of a kind that keeps "
            "something else than keys and values."
        )
    for call in probe.calls:
        if call.problem:
            raise ModelError(f"{kind} models can't be run here: a layer {call.problem}, which is not supported.")
    return probe.calls


def _alone(model: Any, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and positions of one sequence from its start."""
    return torch.tensor(ids, device=model.device), torch.arange(len(ids), device=model.device)


def _logits(model: Any, ids: torch.Tensor, positions: torch.Tensor, **options: Any) -> torch.Tensor:
    """Logits [rows, vocabulary] of ids and positions [T], without transformers' own cache."""
    return model(input_ids=ids[None], position_ids=positions[None], use_cache=False, **options).logits[0]
