"""The web tier's table of sizes is that of the installed transformers."""

import warnings

import pytest

from completions.catalog.config_sizes import TABLE
from tests.conformance import config_sizes


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore")
def test_the_table_is_up_to_date():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        written = config_sizes.text(config_sizes.rows())
    assert TABLE.read_text() == written, "run: python -m tests.conformance.config_sizes"
