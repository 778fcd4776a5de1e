"""The pictures of the documents can be taken anew."""

from pathlib import Path

import pytest

from tests.acceptance.pages import browser, screenshots

pytestmark = [pytest.mark.acceptance, pytest.mark.long]


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium (Debian: chromium)")
def test_every_picture_is_taken(tmp_path: Path) -> None:
    screenshots.take_pictures(tmp_path)
    wanted = {picture.name for picture in screenshots.FOLDER.iterdir()}
    assert {picture.name for picture in tmp_path.iterdir()} == wanted
