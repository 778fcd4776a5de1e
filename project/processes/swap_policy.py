"""Which of several models a worker loads that has memory for one at a time. No clock."""

from collections.abc import Mapping
from dataclasses import dataclass

from completions.jobs.new_job import Level

PATIENCE = {Level.URGENT: 5.0, Level.LIVE: 15.0, Level.BACKGROUND: 60.0, Level.BATCH: 300.0}
"""Seconds that a job waits for its model while the loaded one has work too, by its level."""
STAY = 4.0
"""A busy model stays for this many times as long as it took to load, so that loading takes at most
a fifth of the time."""
PUT_OFF = 3.0
"""For how many times their patience jobs of another model are put off at most, while more jobs as
urgent as they are wait for the loaded one."""
FIRST_LOAD = 5.0
"""Seconds that loading a model is expected to take before it was measured."""


@dataclass(slots=True)
class ModelState:
    """What a worker knows of a model that it may load."""

    due: float | None = None
    """When its jobs have waited as long as they should; None if none waits that needs this
    worker."""
    level: Level | None = None
    """The most urgent level of which jobs wait."""
    waiting: int = 0
    """How many jobs of that level wait."""
    load_seconds: float = FIRST_LOAD
    """How long its last start took."""

    def observe(
        self, now: float, level: Level | None, waiting: int = 0, is_needed: bool = True
    ) -> None:
        """Note the most urgent level of which jobs wait, how many of them, and whether they need
        this worker to load the model."""
        self.level, self.waiting = level, waiting
        if level is None or not is_needed:
            self.due = None
        else:
            due = now + PATIENCE[level]
            self.due = due if self.due is None else min(self.due, due)


def choose(
    now: float,
    loaded: str | None,
    loaded_at: float,
    is_idle: bool,
    models: Mapping[str, ModelState],
) -> str | None:
    """Return the model to load instead of the loaded one, or None to keep it.

    An idle model stays for as long as loading the next one takes: models that are asked for by
    turns spend at most half of the time on loading. A busy one stays until jobs of another have
    lost their patience, and for `STAY` times its own load. The model whose jobs are due first is
    next, so none starves. They are put off while more jobs wait for the loaded model: more of them
    gain than lose by it.
    """
    waiting = {name: m.due for name, m in models.items() if name != loaded and m.due is not None}
    if not waiting:
        return None
    next_model = min(waiting, key=waiting.__getitem__)
    if loaded is None:
        return next_model
    stay = models[next_model].load_seconds if is_idle else STAY * models[loaded].load_seconds
    due = waiting[next_model]
    if _is_longer(models[loaded], models[next_model]):
        due += PUT_OFF * PATIENCE[models[next_model].level or Level.URGENT]
    may_go = now - loaded_at >= stay and (is_idle or now >= due)
    return next_model if may_go else None


def _is_longer(own: ModelState, other: ModelState) -> bool:
    """Return whether more jobs wait for one model than for another, of a level as urgent."""
    if own.level is None or other.level is None:
        return False
    return own.level <= other.level and own.waiting > other.waiting
