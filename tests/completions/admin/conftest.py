"""The admin as its users see it: `admin` may everything."""

import pytest
from django.contrib.auth.models import User
from django.test import Client


@pytest.fixture
def admin(client: Client, served: None, db: None) -> Client:
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client
