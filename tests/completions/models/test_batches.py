"""The ids of a batch's jobs. The sorting is PostgreSQL's, in the languages of its databases."""

import pytest

from completions.models import Batch
from tests.postgresql import connect_or_skip


@pytest.mark.parametrize("collation", ["C", "en-x-icu", "sv-x-icu"])
def test_the_jobs_of_a_batch_lie_between_two_ids_in_any_language(collation: str) -> None:
    batch, others = Batch(job_prefix="cmpl-"), [Batch(job_prefix="cmpl-") for _ in range(20)]
    mine = [batch.job_id(number) for number in (1, 9, 10, 500, 50_000, 999_999, 2_147_483_647)]
    foreign = [each.job_id(number) for each in others for number in (1, 50_000)]
    chats = [each.replace("cmpl-", "chatcmpl-") for each in mine]
    with connect_or_skip() as connection:
        between = f'id COLLATE "{collation}" BETWEEN %s AND %s'
        query = f"SELECT id FROM unnest(%s::text[]) AS id WHERE {between}"  # noqa: S608
        found = connection.execute(query, [mine + foreign + chats, *batch.job_ids]).fetchall()
    assert [job_id for (job_id,) in found] == mine
