"""docs/console.md shows the pictures that there are, and these stay small."""

from tests.acceptance.pages.film_strip import (
    DOCUMENT,
    FOLDER,
    SCHEMES,
    SIZES,
    VIEWS,
    write_document,
)


def test_the_document_and_its_pictures_belong_together():
    assert DOCUMENT.read_text() == write_document()
    pictures = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert pictures.keys() == {
        f"{view.name}-{size}-{scheme}.webp"
        for view in VIEWS
        for size in SIZES
        for scheme in SCHEMES
    }
    assert sum(pictures.values()) < 2 * 1024 * 1024
