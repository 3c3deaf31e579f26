"""What can be done to a running engine from outside: pause it, step it, slow it down, give it other limits.

Knows: the scheduler and what the engine was started with. Must not know: torch, the broker, who may do it.
Everything here takes effect between two iterations and changes when a token is computed, never which: a request is a
pure function of its prompt, its parameters and its seed.
"""

from __future__ import annotations

from typing import Any

from inference.config import EngineConfig, ParameterError
from inference.limits import checked_values
from inference.scheduling.factory import new_policy
from inference.scheduling.resize import limits_of, set_limits
from inference.scheduling.scheduler import Scheduler


class Controls:
    """Of one engine. All calls come from the thread that steps it; each raises ParameterError with one sentence.

    most: the limits that the engine was started with.
    """

    def __init__(self, config: EngineConfig, scheduler: Scheduler) -> None:
        self._config, self._scheduler = config, scheduler
        self.most = self._limits = limits_of(scheduler)
        self._shown = self._limits.to_mapping()

    @property
    def paused(self) -> bool:
        return self._scheduler.gate.paused

    @property
    def slow_ms(self) -> float:
        return self._scheduler.gate.slow_ms

    @property
    def settings(self) -> dict[str, Any]:
        """What is in force of the settings that can be changed, and `next_policy`: the one that takes over when what
        runs has ended, or None."""
        following = self._scheduler.next_policy
        return {
            "policy": self._scheduler.policy.name,
            "next_policy": None if following is None else following.name,
            **self._shown,
        }

    def pause(self) -> None:
        """Begin no iteration any more. Whoever runs keeps seat and blocks, whoever comes waits, deadlines go on."""
        self._scheduler.gate.pause()
        self._scheduler.queue.changed()

    def resume(self) -> None:
        self._scheduler.gate.resume()
        self._scheduler.queue.changed()

    def step(self) -> None:
        """While paused: one iteration, if anybody is here."""
        if not self.paused:
            raise ParameterError("the engine is not paused; pause it, then step")
        if self._scheduler.has_work:
            self._scheduler.gate.grant()

    def slow(self, ms: float) -> None:
        """At least `ms` from one iteration's begin to the next; 0: as fast as it can."""
        self._scheduler.gate.slow_ms = checked_values("slow", {"ms": ms})["ms"]

    def set_policy(self, name: str) -> None:
        """Go on under another batching policy. What runs ends first; what waits, waits for that."""
        self._scheduler.switch_policy(new_policy(self._config, name))
        self._scheduler.queue.changed()

    def set_limits(self, **values: Any) -> None:
        """Seats, budget, blocks, named as in `Limits`; all that are given, or none."""
        wanted = self._limits.changed(self.most, checked_values("set", values))
        set_limits(self._scheduler, wanted)
        self._limits, self._shown = wanted, wanted.to_mapping()
        self._scheduler.queue.changed()

    def carry_out(self, action: Any, values: dict[str, Any]) -> None:
        """One of `inference.limits.ACTIONS` with its values."""
        given = checked_values(action, values)
        match action:
            case "pause":
                self.pause()
            case "resume":
                self.resume()
            case "step":
                self.step()
            case "slow":
                self.slow(given["ms"])
            case "policy":
                self.set_policy(given["policy"])
            case "set":
                self.set_limits(**given)
