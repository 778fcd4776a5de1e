"""What must hold in Redis after each step of test_life_cycle_model.py."""

import time
from collections import Counter
from typing import Any

import redis

from completions.jobs.events import EndEvent, decode, decode_lines
from completions.jobs.execute import MAX_WORKER_FAILURES
from completions.jobs.record import JobRecord
from completions.jobs.store import SyncStore
from tests.completions.jobs.job_making import PREFIX
from tests.completions.jobs.life_cycle_model import Model, ModelJob, byte_scopes, class_of
from tests.completions.jobs.test_budgets import periods

TOKENS_PER_MINUTE = 600
ORGANIZATION = 7
CLASSES = ("interactive", "background", "batch")
NO_KEY = -2
"""What TTL answers."""


def seed_budgets(store: SyncStore, api_key_id: int) -> None:
    for scope in (f"k{api_key_id}", f"o{ORGANIZATION}"):
        assert store.call("seed", scope, "0-0", *periods(), 0, 0, 0, 0) == 1


class Found:
    """Redis compared with the model."""

    def __init__(self, client: redis.Redis, store: SyncStore, model: Model) -> None:
        self._client = client
        self._store = store
        self._model = model
        self._began = time.monotonic()
        self.settled: list[str] = []
        self._seen: dict[tuple[str, str], Any] = {}

    def check(self) -> None:
        self._read()
        for job in self._model.accepted:
            if job.new.id in self._model.jobs:
                self._check_job(job)
            else:
                assert not self._seen["hgetall", f"job:{job.new.id}"]
        self._check_sets()
        self._check_lines()
        self._check_usage()
        self._check_spending()
        self._check_bucket()
        suspects = [job.owner for job in self._model.open_jobs() if job.owner and job.suspect]
        assert len(suspects) == len(set(suspects)), "two suspects run on one worker"

    def _read(self) -> None:
        """Ask Redis for all in one round trip."""
        ids = [job.new.id for job in self._model.accepted]
        keys = {job.new.api_key_id for job in self._model.accepted}
        asked: list[tuple[str, str]] = [
            *((command, f"job:{job_id}") for job_id in ids for command in ("hgetall", "ttl")),
            *((command, f"ev:{job_id}") for job_id in ids for command in ("xrange", "ttl")),
            *(("xrange", f"ctl:{job.web}") for job in self._model.accepted if job.web),
            *(("hgetall", f"{kind}{key}") for key in keys for kind in ("spent:k", "limits:")),
            *(("zrange", f"{kind}:{key}") for key in keys for kind in ("queued", "busy")),
            *(("smembers", f"depth:{name}") for name in CLASSES),
            ("zrange", "open"), ("hgetall", "bytes"), ("xrange", "usage"),
            ("hgetall", f"spent:o{ORGANIZATION}"),
        ]  # fmt: skip
        pipeline = self._client.pipeline(transaction=False)
        for command, name in asked:
            bounds = (0, -1) if command == "zrange" else ()
            getattr(pipeline, command)(PREFIX + name, *bounds)
        self._seen = dict(zip(asked, pipeline.execute(), strict=True))

    def _members(self, command: str, name: str) -> set[str]:
        return {member.decode() for member in self._seen[command, name]}

    def _check_job(self, job: ModelJob) -> None:
        raw = self._seen["hgetall", f"job:{job.new.id}"]
        record = JobRecord.read(job.new.id, raw)
        found: dict[str, Any] = {
            "state": record.state,
            "owner": record.owner,
            "attempt": record.attempt,
            "losses": int(raw[b"losses"]),
            "cancelling": record.cancelling,
            "next": record.sequence_number,
            "generated": int(raw.get(b"generated", 0)),
            "usage": record.usage,
            "code": record.error.code if record.error else None,
        }
        assert found == {
            "state": job.state,
            "owner": job.owner,
            "attempt": job.attempt,
            "losses": job.worker_failures,
            "cancelling": job.cancelling,
            "next": job.next_number,
            "generated": len(job.tokens),
            "usage": job.usage,
            "code": job.code,
        }
        assert job.code != "worker_error" or job.worker_failures == MAX_WORKER_FAILURES
        self._check_events(job)
        self._check_expiry(job)

    def _check_events(self, job: ModelJob) -> None:
        entries = self._seen["xrange", f"ev:{job.new.id}"]
        events = [decode(fields[b"d"]) for _, fields in entries]
        ends = [event for event in events if isinstance(event, EndEvent)]
        choices = [choice for event in events if isinstance(event, list) for choice in event]
        numbers = [choice.sequence_number for choice in choices]
        numbers += [end.sequence_number for end in ends]
        assert numbers == list(range(1, len(numbers) + 1)), "a gap, or a repeated number"
        assert [token for choice in choices for token in choice.token_ids] == job.tokens
        if job.open:
            assert ends == []
        else:
            (end,) = ends
            assert end is events[-1]
            assert (end.state, end.usage) == (job.state, job.usage)
            assert (end.error.code if end.error else None) == job.code
        if job.new.kind == "sync" and job.web:
            entries = self._seen["xrange", f"ctl:{job.web}"]
            woken = [e[b"d"].decode() for _, e in entries if b"d" in e]
            assert woken.count(job.new.id) == (not job.open)
        if job.new.kind == "stream" and job.web:
            lines = [
                event
                for _, e in self._seen["xrange", f"ctl:{job.web}"]
                if b"s" in e
                for job_id, event in decode_lines(e[b"s"])
                if job_id == job.new.id
            ]
            assert sum(isinstance(event, EndEvent) for event in lines) == (not job.open)

    def _check_expiry(self, job: ModelJob) -> None:
        expires = not job.open and (not job.new.is_durable or job.new.id in self.settled)
        for key in (f"job:{job.new.id}", f"ev:{job.new.id}"):
            left = self._seen["ttl", key]
            assert left == NO_KEY or (left > 0) == expires

    def _check_sets(self) -> None:
        open_jobs = self._model.open_jobs()
        assert self._members("zrange", "open") == {job.new.id for job in open_jobs}
        for name in CLASSES:
            of_class = {job.new.id for job in open_jobs if class_of(job.new) == name}
            assert self._members("smembers", f"depth:{name}") == of_class
        for key in {job.new.api_key_id for job in self._model.accepted}:
            mates = [job for job in open_jobs if job.new.api_key_id == key]
            queued = {job.new.id for job in mates if job.new.kind != "batch"}
            assert self._members("zrange", f"queued:{key}") == queued
            busy = {job.new.id for job in mates if job.limited and job.new.kind != "batch"}
            assert self._members("zrange", f"busy:{key}") == busy

        sums = Counter[str]()
        for job in open_jobs:
            for scope in byte_scopes(job.new):
                sums[scope] += job.new.size
        found = {name.decode(): int(sum_) for name, sum_ in self._seen["hgetall", "bytes"].items()}
        assert {scope: sum_ for scope, sum_ in found.items() if sum_} == sums

    def _check_lines(self) -> None:
        lines, found = self._model.lines, {}
        for name in ("turns", "key_turns", "waiting"):
            for key in self._client.scan_iter(f"{PREFIX}{name}:*"):
                *place, model = key.decode().removeprefix(f"{PREFIX}{name}:").split(":")
                assert model == "m"
                found[name, *map(int, place)] = {
                    member.decode() for member in self._client.zrange(key, 0, -1)
                }
        expected: dict[Any, set[str]] = {
            ("waiting", *place): ids for place, ids in lines.waiting.items()
        }
        for place, members in lines.turns.items():
            if members:
                name = "turns" if len(place) == 1 else "key_turns"
                expected[name, *place] = set(map(str, members))
        assert found == expected

    def _check_usage(self) -> None:
        entries = self._seen["xrange", "usage"]
        listed = Counter([fields[b"id"].decode() for _, fields in entries] + self.settled)
        assert listed == Counter(job.new.id for job in self._model.accepted if not job.open)

    def _check_spending(self) -> None:
        accepted = self._model.accepted
        scopes = {
            f"o{ORGANIZATION}": [j for j in accepted if j.new.organization_id == ORGANIZATION]
        }
        limited = {job.new.api_key_id for job in self._model.accepted if job.limited}
        for key in limited:
            scopes[f"k{key}"] = [j for j in self._model.accepted if j.new.api_key_id == key]
        for scope, jobs in scopes.items():
            raw = self._seen["hgetall", f"spent:{scope}"]
            spent = {name.decode(): int(value) for name, value in raw.items()}
            held = [job.new for job in jobs if job.limited and job.open]
            assert spent["held_tokens"] == sum(new.max_total_tokens for new in held)
            assert spent["held_cost"] == sum(new.max_cost for new in held)
            assert spent["month_tokens"] == sum(job.used for job in jobs)
            assert spent["month_cost"] == sum(job.cost for job in jobs)

    def _check_bucket(self) -> None:
        """It refills while the test runs, so it is known within bounds only."""
        rated = [job for job in self._model.accepted if job.limited and job.new.kind != "batch"]
        if rated:
            taken = sum(job.new.max_total_tokens if job.open else job.used for job in rated)
            left = float(self._seen["hgetall", f"limits:{rated[0].new.api_key_id}"][b"tokens"])
            refilled = (time.monotonic() - self._began) * TOKENS_PER_MINUTE / 60
            assert -0.001 <= left - (TOKENS_PER_MINUTE - taken) <= refilled + 0.001

    def check_that_nothing_is_left(self) -> None:
        assert self._model.open_jobs() == []
        for pattern in ("open", "depth:*", "queued:*", "busy:*", "*turns:*", "waiting:*"):
            assert self._client.keys(PREFIX + pattern) == []
