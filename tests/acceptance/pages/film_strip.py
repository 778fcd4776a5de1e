"""Takes the pictures in docs/images anew, by day and by night, on a desk and on a phone, from
made-up usage; and writes docs/console.md, which shows them.

    python -m tests.acceptance.pages.film_strip [NAME ...]

Look at each before it is committed.
"""

import base64
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.acceptance.pages import browser
from tests.acceptance.service import ROOT, ScriptedInstallation

FOLDER, DOCUMENT = ROOT / "docs" / "images", ROOT / "docs" / "console.md"
SIZES = {"desktop": (1366, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")
WIDTHS = {"desktop": 37, "phone": 11}
"""Of the pictures in the document, in percent of its own."""


class View(NamedTuple):
    name: str
    caption: str
    path: str


VIEWS = (
    View("dashboard", "The dashboard over 30 days.", "/admin/?period=30d"),
    View("usage", "Usage by key, its bars stacked.", "/admin/usage/?by=key"),
    View("playground", "The playground, comparing two requests.", "/admin/playground/"),
    View("upload", "A batch without a shell.", "/admin/batches/new/"),
    View("keys", "API keys, with use and limits.", "/admin/completions/apikey/"),
    View("requests", "The requests.", "/admin/completions/usagerecord/"),
)
TO_WEBP = """async png => {
  const image = new Image();
  image.src = "data:image/png;base64," + png;
  await image.decode();
  const { width, height } = image;
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  canvas.getContext("2d").drawImage(image, 0, 0);
  return canvas.toDataURL("image/webp", 0.8).split(",")[1];
}"""


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    DOCUMENT.write_text(write_document())
    names = sys.argv[1:] or [view.name for view in VIEWS]
    with tempfile.TemporaryDirectory() as home, ScriptedInstallation(Path(home), 0.2) as service:
        service.manage("example_data", "--requests", "5000")
        with browser.chromium() as chromium:
            page, converter = chromium.new_page(), chromium.new_page()
            browser.log_in(page, service)
            for view in VIEWS:
                if view.name in names:
                    take(page, converter, service.url, view)


def take(page: browser.Page, converter: browser.Page, url: str, view: View) -> None:
    """Write the pictures of a view. `converter` is a page without a content security policy, which
    makes WebP of PNG."""
    for size, (width, height) in SIZES.items():
        for scheme in SCHEMES:
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(f"{url}{view.path}")
            if view.name == "playground" and page.locator("[data-side='2']").is_hidden():
                page.locator("#compare").click()
            png = base64.b64encode(page.screenshot()).decode()
            webp = base64.b64decode(converter.evaluate(TO_WEBP, png))
            (FOLDER / f"{view.name}-{size}-{scheme}.webp").write_bytes(webp)


def write_document() -> str:
    """Return docs/console.md."""
    lines = [
        "# The console in pictures",
        "",
        "Pages by day and by night, on a desk and on a phone, with invented data, as",
        "`python -m tests.acceptance.pages.film_strip` takes them anew.",
        "[Operate](operate.md#the-admin) says what the pages are for.",
    ]
    for view in VIEWS:
        shown = [
            f'<img src="images/{view.name}-{size}-{scheme}.webp" width="{width}%" '
            f'alt="{view.caption} {size.capitalize()}, {scheme}.">'
            for size, width in WIDTHS.items()
            for scheme in SCHEMES
        ]
        lines += [
            "",
            f"## {view.name.capitalize()}",
            "",
            view.caption,
            "",
            f"<p>{' '.join(shown)}</p>",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
