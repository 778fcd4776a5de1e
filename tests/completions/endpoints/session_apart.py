"""Stores the turns of a session with a branch. Prints the turns up to a choice, how many turns the
session has, and what its organization stores. `run_apart` in ../conftest.py runs it."""

from datetime import timedelta

from django.utils import timezone

from completions.batches import files
from completions.endpoints.sessions import _list_turns
from completions.models import ApiKey, Job, Organization, Session
from completions.requests.past import Turn, TurnChoice
from completions.sessions import reading


def make_turn(session: Session, number: int, after: int | None, choice: int = 0) -> None:
    turn = Turn(token_ids=[number], choices=[TurnChoice([9]), TurnChoice([8])])
    now = timezone.now() + timedelta(seconds=number)
    Job.objects.create(
        id=name(number),
        organization=session.organization,
        api_key=session.api_key,
        model="m",
        status="completed",
        request={},
        context={"n": 2},
        created_at=now,
        deadline_at=now,
        ttl=60,
        session=session,
        after_turn="" if after is None else name(after),
        after_index=choice,
        turn=turn.compress(),
    )


def name(number: int) -> str:
    return f"cmpl-{number:032x}"


def main() -> None:
    organization = Organization.objects.create(name="one")
    key = ApiKey.objects.create(organization=organization, name="key")
    session = Session.objects.create(
        organization=organization,
        api_key=key,
        model="m",
        seconds=60,
        expires_at=timezone.now() + timedelta(hours=1),
        bytes=5,
    )
    make_turn(session, 1, None)
    make_turn(session, 2, 1, 1)
    make_turn(session, 3, 1)
    make_turn(session, 4, 2)
    place = reading.find_place(session, f"{name(4)}:1")
    path = reading.read_path(session, place)
    print(*(f"{row.turn.token_ids[0]}:{row.choice}" for row in path))
    print(*(len(turn["choices"]) for turn in _list_turns(session)))
    files.check_room(organization.pk, size=1)


if __name__ == "__main__":
    main()
