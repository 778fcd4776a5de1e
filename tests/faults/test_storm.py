"""Processes are killed at random under mixed load, round after round."""

import asyncio
import os
import random
import signal
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.acceptance.kills.test_kills import create_batch, ended, require_every_answer_once
from tests.acceptance.service import ScriptedInstallation
from tests.faults.invariants import require_sound, until
from tests.faults.traffic import Traffic

CLIENTS = 12
LINES = 200
VICTIMS = ("worker", "web", "cpu-worker", "valkey")
ROUNDS = int(os.environ.get("QUIRE_FAULT_ROUNDS", "24"))
SEED = int(os.environ.get("QUIRE_FAULT_SEED", "1"))
"""The same in every run by default, so that only a change of code can change the result."""


def strike(service: ScriptedInstallation, victim: str, number: signal.Signals) -> None:
    """Send a process a signal. `up` or the test starts another in its place."""
    if victim == "worker":
        service.restart_worker(number)
    else:
        os.kill(service.pid(victim), number)


async def storm(service: ScriptedInstallation, victims: list[str], dice: random.Random):
    traffic = Traffic(service, CLIENTS, dice.randrange(1 << 30))
    running = asyncio.create_task(traffic.run())
    for victim in victims:
        await asyncio.sleep(dice.uniform(0.5, 2.5))
        number = dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        if victim == "valkey":  # SIGTERM would only restart it in order
            number = signal.SIGKILL
        await asyncio.to_thread(strike, service, victim, number)
    seen = traffic.ledger  # a slow machine starts a web process in ten seconds
    await asyncio.to_thread(
        until, lambda: seen.outcomes["whole streams"] and seen.accepted, "a stream is whole"
    )
    await traffic.until_more(CLIENTS)
    traffic.stop()
    return await running


def when_it_answers(call: Callable[[], Any]) -> Any:
    """Return the call's answer; None while a process restarts."""
    try:
        return call()
    except (openai.APIConnectionError, openai.InternalServerError):
        return None


def run_storm(service: ScriptedInstallation, victims: list[str], dice: random.Random) -> None:
    print(f"seed {SEED}: {' '.join(victims)}")
    with service.client() as client:
        batch = create_batch(client, LINES)
        ledger = asyncio.run(storm(service, victims, dice))
        print(dict(ledger.outcomes))
        done = until(lambda: when_it_answers(lambda: ended(client, batch)), "the batch ends")
        require_every_answer_once(service, client, done, LINES)
    require_sound(service, ledger)
    assert ledger.outcomes["whole streams"], ledger.outcomes
    assert ledger.accepted


@pytest.mark.long  # tests/acceptance/kills/test_kills.py kills each kind alone
@pytest.mark.acceptance
def test_each_process_is_killed_once(scripted: ScriptedInstallation) -> None:
    dice = random.Random(SEED)  # noqa: S311
    run_storm(scripted, dice.sample(VICTIMS, len(VICTIMS)), dice)


@pytest.mark.faults
def test_for_many_rounds(tmp_path) -> None:
    dice = random.Random(SEED)  # noqa: S311
    with ScriptedInstallation(tmp_path, 0.01) as service:
        for _ in range(ROUNDS // len(VICTIMS)):
            run_storm(service, dice.choices(VICTIMS, k=len(VICTIMS)), dice)
