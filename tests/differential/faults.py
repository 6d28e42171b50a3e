"""Errors of ours, injected at random into every step of the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from threading import RLock
from typing import Any, Final

from prefixpilot import ContextPilot
from prefixpilot.jsontext import JsonText
from prefixpilot.prompts import render_blocks
from prefixpilot.prompts.request import parse_request
from prefixpilot.proxy.answer import AnswerObserver
from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.ordinary.seam import OrdinaryTreat
from prefixpilot.proxy.ordinary.settings import OrdinarySettings
from prefixpilot.proxy.report import plan_header

PLANNER_STEPS: Final = ("propose", "as_given", "propose_batch", "learn")
LEDGER_STEPS: Final = ("restore", "find_retry", "record", "went_on")


class InjectedError(RuntimeError):
    """An error of ours."""


class Faults:
    """Decides, call by call, whether a step fails.

    Attributes:
        injected: how many did.
    """

    def __init__(self, rng: Random, share: float) -> None:
        self._rng = rng
        self._share = share
        self.injected = 0

    def perhaps(self, step: str) -> None:
        """Raises InjectedError, or does nothing."""
        if self._rng.random() < self._share:
            self.injected += 1
            raise InjectedError(step)

    def before(self, step: str, action: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*args: Any, **more: Any) -> Any:
            self.perhaps(step)
            return action(*args, **more)

        return faulty

    def steps(self) -> dict[str, Any]:
        """Collaborators of a pipeline, all of which may fail."""
        faults = self

        class Observer(AnswerObserver):
            def feed(self, data: bytes) -> None:
                faults.perhaps("feed")
                super().feed(data)

        planner = Faulty(ContextPilot(), PLANNER_STEPS, self)
        treat = OrdinaryTreat.of(OrdinarySettings(), planner, RLock())
        assert treat is not None
        return {
            "parse": self.before("parse", parse_request),
            "render": self.before("render", render_blocks),
            "place": self.before("place", JsonText.edited),
            "describe": self.before("describe", plan_header),
            "observer": Observer,
            "planner": planner,
            "treat": self.before("treat", treat),
            "ledger": Faulty(Ledger(10_000, 512, 1 << 26), LEDGER_STEPS, self),
        }


class Faulty:
    """Another object, of which some methods may fail."""

    def __init__(self, target: Any, steps: tuple[str, ...], faults: Faults) -> None:
        self._target = target
        self._steps = steps
        self._faults = faults

    def __len__(self) -> int:
        return len(self._target)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return self._faults.before(name, found) if name in self._steps else found
