"""A member makes keys in four threads, each with a connection of its own, of which the organization
allows one. Prints how many there are. `run_apart` in ../conftest.py runs it."""

import threading
from concurrent.futures import ThreadPoolExecutor

from django.core.management import call_command
from django.db import connections
from django.test import Client

from completions.models import ApiKey, Organization
from tests.completions.admin.members import join, sign_in

THREADS = 4


def make_together() -> int:
    organization = Organization.objects.create(name="one", keys_per_member=1)
    user = join(organization, "ada")
    clients = [sign_in(user) for _ in range(THREADS)]
    connections.close_all()
    ready = threading.Barrier(THREADS)

    def make(client: Client) -> int:
        form = {"name": "mine", "scopes": ["inference"], "organization": organization.pk}
        ready.wait()
        try:
            answer = client.post("/admin/completions/apikey/add/", form, SERVER_NAME="127.0.0.1")
            return answer.status_code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(make, clients)) == [200] * THREADS
    return ApiKey.objects.count()


if __name__ == "__main__":
    call_command("migrate", verbosity=0)
    print(make_together())
