"""Samples the load of the workers once a minute, for the dashboard's charts."""

from collections import Counter, defaultdict
from datetime import datetime

from completions.catalog import model_files
from completions.jobs import operate
from completions.jobs.sharding.shards import SyncShards, run_each
from completions.jobs.workers import WorkerRecord, list_all_workers
from completions.models import LoadSample

_COLUMNS = {
    "sync": "queued_interactive",
    "stream": "queued_interactive",
    "background": "queued_background",
    "batch": "queued_batch",
}


def sample(shards: SyncShards, now: datetime) -> None:
    """Store a sample for every served model. The first sample of a minute is kept."""
    queued: dict[str, Counter[str]] = defaultdict(Counter)
    counts = sum(run_each(shards, operate.count_queued), Counter())
    for (model, kind), count in counts.items():
        queued[model][_COLUMNS[kind]] += count
    serving: dict[str, list[WorkerRecord]] = defaultdict(list)
    for worker in list_all_workers(shards):
        serving[worker.model].append(worker)
    LoadSample.objects.bulk_create(
        [
            LoadSample(
                at=now.replace(second=0, microsecond=0),
                model=entry.id,
                workers=len(serving[entry.id]),
                slots=sum(worker.slots or entry.max_sequences for worker in serving[entry.id]),
                running=sum(int(worker.facts.get("running", 0)) for worker in serving[entry.id]),
                **queued[entry.id],
            )
            for entry in model_files.load_catalog()
        ],
        ignore_conflicts=True,
    )
