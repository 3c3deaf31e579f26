"""What all parts of a run share: the model, loaded once, fresh engines over it, and this machine's peaks.

Knows: settings of the run. Must not know: what is measured.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bench import load
from bench.limits import Costs, costs_of, shapes_of
from bench.machine import Peaks, measure_peaks
from bench.progress import Progress
from inference import Engine, EngineConfig


@dataclass
class Bench:
    """The model is loaded when first asked for, after the processes that must run alone.

    quick: short runs.  peers: commands.  rates: requests/s of the load.  seats: of the comparison of policies.
    picture: where the plot goes; None: nowhere.
    """

    progress: Progress
    model_name: str = "smollm2"
    dtype: str = "auto"
    quick: bool = False
    peers: list[str] = field(default_factory=list)
    rates: tuple[float, ...] = load.RATES
    seats: int = 16
    picture: Path | None = None

    @cached_property
    def _loaded(self) -> tuple[Any, Any, str]:
        from inference.execution.models.loader import load_model
        from inference.text.tokenizer import load_tokenizer

        self.say("loading the model")
        loaded = load_model(EngineConfig(model=self.model_name, dtype=self.dtype))
        return loaded.model, load_tokenizer(loaded.tokenizer_folder), loaded.name

    @property
    def model(self) -> Any:
        return self._loaded[0]

    def engine(self, **settings: Any) -> Engine:
        """A fresh engine over the one model; no prefix caching, so that no run profits from the one before."""
        gc.collect()  # the KV pool of the engine before
        config = EngineConfig(model=self.model_name, dtype=self.dtype, **{"prefix_caching": False, **settings})
        return Engine.from_parts(config, *self._loaded)

    @cached_property
    def costs(self) -> Costs | None:
        return costs_of(self.model)

    @cached_property
    def peaks(self) -> Peaks:
        self.say("measuring what this machine can do at most")
        shapes = list(shapes_of(self.model.config).values()) if self.costs else []
        return measure_peaks(shapes[:2] if self.quick else shapes, self.quick)

    @property
    def say(self) -> Callable[[str], None]:
        return self.progress.say
