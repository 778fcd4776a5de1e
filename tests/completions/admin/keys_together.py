"""A member makes keys in four threads, each with a connection of its own, of which the organization
allows one. Prints how many there are. `run_apart` in ../conftest.py runs it."""

from functools import partial

from django.test import Client

from completions.models import ApiKey, Organization
from tests.completions.admin.members import join, sign_in
from tests.completions.together import run_together

THREADS = 4


def make_together() -> int:
    organization = Organization.objects.create(name="one", keys_per_member=1)
    user = join(organization, "ada")
    clients = [sign_in(user) for _ in range(THREADS)]

    def make(client: Client) -> int:
        form = {"name": "mine", "scopes": ["inference"], "organization": organization.pk}
        path = "/admin/completions/apikey/add/"
        return client.post(path, form, SERVER_NAME="127.0.0.1").status_code

    assert run_together(*(partial(make, client) for client in clients)) == [200] * THREADS
    return ApiKey.objects.count()


if __name__ == "__main__":
    print(make_together())
