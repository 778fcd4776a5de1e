"""The console in a real browser: a constraint is judged, a stream is read and stopped, a request is
copied, 50,000 results are filtered, and a Viewer looks without acting."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.acceptance.pages import browser
from tests.acceptance.service import MODEL, Installation, ended_job

pytestmark = [pytest.mark.acceptance, pytest.mark.wide]
MAKE_VIEWER = (
    "from django.contrib.auth.models import Group, User;"
    "user = User.objects.create_user('viewer', password='only looks', is_staff=True);"
    "user.groups.add(Group.objects.get(name='Viewer'))"
)
STORE_PROMPTS = (
    "from completions.accounts import changes;"
    "from completions.accounts.audit import Actor;"
    "from completions.models import Organization;"
    "rows = list(Organization.objects.all());"
    "[setattr(row, 'store_prompts', True) for row in rows];"
    "[changes.change(row, ['store_prompts'], Actor.from_shell()) for row in rows]"
)
MAKE_RESULTS = (
    "from completions.models import ApiKey, Organization;"
    "from tests.completions.console.batch_of_results import ended_batch;"
    "key = ApiKey.objects.select_related('organization').get(name='tests');"
    "Organization.objects.update(store_prompts=True);"
    "print(ended_batch(key, {count}).id)"
)


def open_page(chromium: browser.Browser, service: Installation, faults: list[str]) -> browser.Page:
    page = browser.open_page(chromium)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "request",
        lambda r: r.url.startswith((service.url, "data:")) or faults.append(f"asked {r.url}"),
    )
    return page


@pytest.fixture(scope="module")
def visit(chromium: browser.Browser, service: Installation) -> tuple[browser.Page, list[str]]:
    """A page of a user who is logged in, and the faults that occurred in it."""
    faults: list[str] = []
    page = open_page(chromium, service, faults)
    browser.log_in(page, service)
    return page, faults


@pytest.fixture
def page(visit: tuple[browser.Page, list[str]], service: Installation) -> Iterator[browser.Page]:
    page, faults = visit
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light")
    page.evaluate("sessionStorage.clear()")  # what another test has typed
    page.goto(f"{service.url}/admin/playground/")
    page.select_option("[name=model]", MODEL)
    page.select_option("[name=key]", label="default / tests")
    yield page
    assert faults == []


def job_of(page: browser.Page, http: httpx.Client) -> dict[str, object]:
    """The job that the page names, as the API returns it."""
    job_id = page.locator("[data-side=''] [data-part=facts] a").inner_text()
    path = "/v1/chat/completions" if job_id.startswith("chatcmpl") else "/v1/completions"
    return ended_job(http, f"{path}/{job_id}")


@pytest.mark.parametrize(
    "screen", ["desktop", pytest.param("phone in the dark", marks=pytest.mark.long)]
)
def test_an_error_is_marked_where_it_is(page: browser.Page, screen: str):
    if screen != "desktop":
        page.set_viewport_size(browser.PHONE)
        page.emulate_media(color_scheme="dark")
        page.reload()
        assert "dark" in (page.locator("html").get_attribute("class") or "")
    verdict, mark = page.locator("#verdict"), page.locator("#editor mark")
    wrong = (
        ("ebnf", 'root ::= "a"\n  | colour\n', (2, 5), "colour"),
        ("regex", "[a-z]+(", None, None),
        ("json_schema", '{\n  "type": "object",\n  "disallow": {}\n}', (3, 3), "disallow"),
        ("structural_tag", '{"format":\n {"type": "x"}}', (2, 3), "type"),
    )
    for kind, text, place, said in wrong:
        page.select_option("[name=kind]", kind)
        page.locator("[name=constraint]").fill(text)
        page.locator("#verdict[data-tone=bad]").wait_for()
        if place is None:
            continue
        line, column = place
        assert f"Line {line}, column {column}: " in verdict.inner_text()
        assert said in verdict.inner_text()
        assert mark.get_attribute("data-line") == str(line)
        assert mark.get_attribute("data-column") == str(column)
        box, frame = mark.bounding_box(), page.locator("#editor").bounding_box()
        assert box is not None
        assert frame is not None
        assert frame["y"] < box["y"] < frame["y"] + frame["height"]
    page.locator("[name=constraint]").fill('{"format": {"type": "any_text"}}')
    page.locator("#verdict[data-tone=good]").wait_for()
    assert mark.count() == 0
    assert browser.find_overflow(page) == []


@pytest.mark.long
def test_an_answer_streams_with_its_probabilities(page: browser.Page, http: httpx.Client):
    page.locator("#messages [aria-label=Content]").fill("Is water wet?")
    page.select_option("[name=kind]", "regex")
    page.locator("[name=constraint]").fill("(yes|no), and that is certain")
    page.locator("#verdict[data-tone=good]").wait_for()
    page.locator("[name=seed]").fill("7")
    page.locator("#run").click()
    page.get_by_text("Ended: stop").wait_for()
    tokens = page.locator("[data-side=''] .q-output .q-token")
    text = "".join(tokens.all_text_contents())
    assert text in ("yes, and that is certain", "no, and that is certain")
    chances = [float(chance) for chance in tokens.evaluate_all(
        "spans => spans.map(span => span.style.getPropertyValue('--p'))"
    )]  # fmt: skip
    assert all(0 <= chance <= 1 for chance in chances)
    assert len(set(chances)) > 1
    assert "Forced" in page.locator("[data-side=''] [data-part=facts]").inner_text()
    assert (
        "of the likeliest tokens" in page.locator("[data-side=''] [data-part=facts]").inner_text()
    )
    forced = page.locator("[data-side=''] .q-output .q-forced")
    assert (
        f"{forced.count()} tokens" in page.locator("[data-side=''] [data-part=facts]").inner_text()
    )
    assert "".join(forced.all_text_contents()).endswith(" certain")
    assert forced.count() < tokens.count()
    forced.first.hover()
    assert (
        "the constraint allowed no other token"
        in page.locator("[data-side=''] [data-part=token]").inner_text()
    )
    tokens.first.hover()
    assert "Likeliest here" in page.locator("[data-side=''] [data-part=token]").inner_text()
    page.get_by_role("button", name="Text", exact=True).click()
    assert page.locator("[data-side=''] [data-part=text]").inner_text() == text
    assert job_of(page, http)["choices"][0]["message"]["content"] == text  # type: ignore[index]
    page.goto(f"{page.url.split('/admin/')[0]}/admin/completions/auditentry/?action=used")
    assert f"admin:{browser.USER}" in page.locator("#result_list tbody tr").first.inner_text()


def test_a_stream_of_token_ids_is_stopped(page: browser.Page, http: httpx.Client):
    page.get_by_role("button", name="Token ids").click()
    page.locator("[name=tokens]").fill("[9703, 314]")
    page.locator("[name=max_tokens]").fill("3000")
    # Free text may end after a token or two: the constraint keeps the stream long enough to stop.
    page.select_option("[name=kind]", "regex")
    page.locator("[name=constraint]").fill("[ab]{3000}")
    page.locator("#verdict[data-tone=good]").wait_for()
    page.locator("#run").click()
    page.locator("[data-side=''] .q-output .q-token").nth(3).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped").wait_for()
    assert page.locator("#run").is_enabled()
    assert job_of(page, http)["status"] == "cancelled"


@pytest.mark.long
def test_a_refusal_is_shown(page: browser.Page):
    page.get_by_role("button", name="Token ids").click()
    page.locator("[name=tokens]").fill("9703 x")
    page.locator("#run").click()
    assert "“x” is no token id" in page.locator("[data-side=''] [data-part=fault]").inner_text()
    page.locator("[name=tokens]").fill("99999999")
    page.locator("#run").click()
    page.locator("[data-side=''] [data-part=fault]", has_text="prompt").wait_for()
    assert page.locator("#run").is_enabled()


@pytest.mark.long
def test_a_copied_request_runs(page: browser.Page, service: Installation):
    page.locator("#messages [aria-label=Content]").fill('It\'s a "quote" for $HOME')
    page.select_option("[name=kind]", "regex")
    page.locator("[name=constraint]").fill("'[ab]'")
    page.locator("[name=max_tokens]").fill("9")
    page.locator("[name=temperature]").fill("0")
    copied = {}
    for what in ("curl", "Python", "Batch line"):
        page.get_by_role("button", name=what, exact=True).click()
        page.locator("#copied", has_text="Cop").wait_for()
        copied[what] = page.locator("#copy").input_value()
    environment = {**os.environ, "QUIRE_API_KEY": service.key}

    def output(*command: str) -> str:
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        return run.stdout

    answer = json.loads(output("bash", "-c", copied["curl"]))["choices"][0]["message"]["content"]
    assert answer in ("'a'", "'b'")
    assert output(sys.executable, "-c", copied["Python"]).rstrip("\n") == answer

    line = json.loads(copied["Batch line"])
    with service.http() as http:
        response = http.post(line["url"], json=line["body"]).raise_for_status().json()
    assert response["choices"][0]["message"]["content"] == answer
    set_here = {"regex": "'[ab]'", "max_tokens": 9, "temperature": 0}
    said = {"role": "user", "content": 'It\'s a "quote" for $HOME'}
    assert line["body"] == {"model": MODEL, "messages": [said], **set_here}


@pytest.mark.long
def test_a_request_is_run_again_with_its_constraint(
    page: browser.Page, service: Installation, http: httpx.Client
):
    service.manage("shell", "-v0", "-c", STORE_PROMPTS)
    body = {"model": MODEL, "prompt": [9703], "max_tokens": 9, "regex": "[a-c]{5}"}
    body |= {
        "seed": 2**62 + 1,
        "min_p": 0.125,
        "stop": ["x", "yz"],
    }  # a seed beyond JavaScript's integers
    first = http.post("/v1/completions", json=body).raise_for_status().json()
    again = page.get_by_role("button", name="Run again")
    browser.reload_until(page, f"{service.url}/admin/jobs/{first['id']}/", again)
    page.get_by_role("button", name="Copy as curl").click()
    assert "[a-c]{5}" in page.get_by_label("The request as curl").input_value()
    again.click()
    page.wait_for_url(lambda url: "/admin/jobs/cmpl-" in url and first["id"] not in url)
    job = page.url.rstrip("/").rpartition("/")[2]
    ended = ended_job(http, f"/v1/completions/{job}")
    assert ended["choices"][0]["text"] == first["choices"][0]["text"]

    page.goto(f"{service.url}/admin/playground/?job={first['id']}")
    page.locator("#verdict", has_text="Valid.").wait_for()
    assert "[a-c]{5}" in page.input_value("[name=constraint]")
    page.get_by_role("button", name="Batch line", exact=True).click()
    page.locator("#copied", has_text="Cop").wait_for()
    copied = json.loads(page.locator("#copy").input_value())["body"]
    assert "[a-c]{5}" in json.dumps(copied.pop("grammar"))
    assert copied.pop("return_meta_info") is True
    again_asked = {name: value for name, value in body.items() if name != "regex"}
    assert copied == {**again_asked, "temperature": 1.0}


@pytest.mark.long
def test_a_viewer_looks_and_does_not_act(
    chromium: browser.Browser, service: Installation, http: httpx.Client
):
    service.manage("shell", "-v0", "-c", MAKE_VIEWER)
    made = service.manage("shell", "-v0", "-c", MAKE_RESULTS.format(count=60)).strip()
    faults: list[str] = []
    page = open_page(chromium, service, faults)
    browser.log_in(page, service, "viewer", "only looks")
    page.goto(f"{service.url}/admin/batches/{made}/results/")
    assert page.locator("#lines tbody tr").count() == 50
    assert page.get_by_role("button", name="Resubmit").count() == 0
    page.goto(f"{service.url}/admin/playground/")
    page.select_option("[name=kind]", "ebnf")
    page.locator("#verdict[data-tone=good]").wait_for()
    assert page.get_by_role("button", name="Run").count() == 0
    status = page.evaluate(
        """async () => {
            const form = document.getElementById("play");
            const response = await fetch("/admin/playground/v1/completions", {
                method: "POST", body: JSON.stringify({prompt: [1]}), headers: {
                    "Content-Type": "application/json", "X-CSRFToken": form.dataset.csrf,
                    [form.dataset.header]: form.elements.key.value,
                },
            });
            return [response.status, (await response.json()).error.message];
        }"""
    )
    assert status[0] == 403
    assert "role Operator" in status[1]
    assert faults == []


@pytest.mark.long
def test_fifty_thousand_results(page: browser.Page, service: Installation):
    """Filtered, paged, opened, downloaded and sent again, on a screen and on a dark phone."""
    made = service.manage("shell", "-v0", "-c", MAKE_RESULTS.format(count=50_000)).strip()
    page.goto(f"{service.url}/admin/completions/batch/{made}/change/")
    page.get_by_role("link", name="Results", exact=True).click()
    shown = page.locator("#lines tbody tr")
    assert shown.count() == 50
    page.select_option("[name=status]", "failed")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**status=failed**")
    assert shown.first.get_attribute("data-number") == "10"
    page.get_by_role("link", name="Next page").click()
    page.wait_for_url("**after=500")
    assert shown.first.get_attribute("data-number") == "510"
    took = page.evaluate("performance.getEntriesByType('navigation')[0].responseEnd")
    print(f"a page of failed lines: {took:.0f} ms")

    page.set_viewport_size(browser.PHONE)
    page.emulate_media(color_scheme="dark")
    page.goto(f"{service.url}/admin/batches/{made}/results/?after=49000&text=NEEDLE+FAILED")
    assert browser.find_overflow(page) == []
    while shown.count() == 0:  # a page searches for a bounded time
        with page.expect_navigation():
            page.get_by_role("link", name="Search on").click()
    assert shown.count() == 1
    with page.expect_download() as downloading:
        page.get_by_role("link", name="jsonl").click()
    lines = downloading.value.path().read_text().splitlines()
    assert [json.loads(line)["custom_id"] for line in lines] == ["line-50000"]
    shown.first.get_by_role("link", name="50000").click()
    assert "needle failed" in page.locator("#output").inner_text()
    assert "tiny" in page.locator("#request").inner_text()
    page.get_by_role("link", name="Results", exact=True).click()
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"{service.url}/admin/batches/{made}/results/?status=failed")
    page.get_by_role("button", name="Resubmit 5,000 lines").click()
    page.get_by_text("sends lines of").wait_for()
