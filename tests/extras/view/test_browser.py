"""Does a real browser show every view, follow keys and links, survive data that means harm, and request nothing but from its own server?"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn

import penstock as ps
from penstock.extras.view.server import application
from penstock.extras.view.view import Viewer
from penstock.recipe import Recipe
from penstock.recipe.run import prepare_recipe
from tests.extras.view import hostile
from tests.extras.view.chromium import NAMES, Browser, browser, executable, pixels, trap
from tests.extras.view.conftest import TOKEN, open_view, wait_for
from tests.policy import SOAK

pytestmark = pytest.mark.skipif(
    executable() is None,
    reason=f"no browser: none of {', '.join(NAMES)} is on the PATH; install chromium, or set PENSTOCK_CHROMIUM",
)


@contextlib.contextmanager
def served(view: Viewer) -> Iterator[str]:
    """The viewer on a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            application(view, TOKEN), log_level="error", lifespan="off", ws="none"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/{TOKEN}/"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def heard() -> list[bytes]:
    return []


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory, heard: list[bytes]) -> Iterator[Browser]:
    """A browser whose requests all go to a trap, except those to this machine."""
    with (
        trap(heard) as port,
        browser(tmp_path_factory.mktemp("browser"), trap=port, patience=1500) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def hostile_path(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: Path) -> Path:
    """Hostile records under hostile names, one of a megabyte, among plain ones."""
    folder = tmp_path_factory.mktemp("hostile")
    texts = [
        *hostile.TEXTS,
        hostile.LONG,
        "",
        *(f"the quick brown fox {row} runs\n" * (1 + row % 9) for row in range(300)),
    ]
    (folder / hostile.FILE_NAME).write_text(
        "".join(f"{json.dumps({'text': text})}\n" for text in texts)
    )
    sets = {
        hostile.SOURCE_NAME: {"path": hostile.FILE_NAME, "weight": 1},
        "again": {"path": f"./{hostile.FILE_NAME}", "weight": 1},
    }
    recipe = {
        "data": sets,
        "tokenizer": str(tokenizer_path),
        "template": "text",
        "cache_dir": "cache",
        "max_dropped": 1,
        "max_length": 128,
        "batch_size": 2,
        "epochs": 2,
        "num_proc": 1,
        "run_id": hostile.SOURCE_NAME,
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    prepare_recipe(Recipe.read(path).changed(progress="none"))
    return path


@pytest.fixture(scope="module")
def url(hostile_path: Path) -> Iterator[str]:
    with served(open_view(hostile_path, run_id=hostile.SOURCE_NAME)) as address:
        yield address


class Page:
    """A page of the viewer in the browser."""

    def __init__(self, found: Browser, url: str) -> None:
        self.browser, self.url = found, url

    def visit(self, address: str, **options: Any) -> None:
        self.browser.visit("about:blank")
        self.browser.visit(self.url + address, **options)
        # before a page has loaded, a link that a script clicks takes the place of its entry in the history
        self.see(
            "location.href !== 'about:blank' && performance.getEntriesByType('navigation')[0].loadEventEnd > 0"
        )

    def value(self, expression: str) -> Any:
        return self.browser.value(expression)

    def see(self, expression: str) -> Any:
        """What an expression gives, as soon as it is true; an element that is not there yet is not an error."""
        expression = f"(() => {{ try {{ return {expression}; }} catch {{ return false; }} }})()"
        try:
            return wait_for(lambda: self.value(expression))
        except AssertionError as error:
            shown = self.value(
                "location.hash + '\\n' + (document.querySelector('.sample-pane') ?? document.body).innerText.slice(0, 3000)"
            )
            raise AssertionError(f"{expression} is not true; the page shows {shown}") from error

    def text(self, words: str) -> None:
        """Wait until the page shows these words."""
        self.see(f"document.querySelector('main').innerText.includes({json.dumps(words)})")

    def press(self, key: str) -> None:
        named = {
            "ArrowDown": 40,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "End": 35,
            "Enter": 13,
            "Escape": 27,
        }
        common = {"key": key, "windowsVirtualKeyCode": named.get(key, ord(key[0].upper()))}
        text = (
            {"text": "\r" if key == "Enter" else key} if key not in named or key == "Enter" else {}
        )
        self.browser.ask("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.browser.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def click(self, selector: str) -> None:
        self.see(f"Boolean(document.querySelector({json.dumps(selector)}))")
        # as a user's click: going back passes over entries that scripts alone have made
        found = f"document.querySelector({json.dumps(selector)}).click()"
        self.browser.ask("Runtime.evaluate", expression=found, userGesture=True)

    def clean(self, heard: list[bytes]) -> None:
        """Nothing failed, nothing of the data ran, and nothing but this server was asked."""
        assert self.browser.errors == [] and self.browser.lines == []
        assert [
            each
            for each in self.browser.requests
            if not each.startswith((self.url, "data:", "about:"))
        ] == []
        assert [each for each in heard if hostile.CANARY.encode() in each] == []


@pytest.fixture
def page(chromium: Browser, url: str) -> Page:
    return Page(chromium, url)


VIEWS = {
    "#/samples?row=0&at=0": "trained",
    "#/samples?row=9&at=9&tab=raw": "\\u0000",
    "#/samples?row=10&at=10&tab=text": "\\u202e",
    "#/run?step=2": "Rank 1",
    "#/what-if?max_length=64": "these settings",
    "#/live": "Nothing was written",
}


@pytest.mark.soak
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), (390, 800)], ids=["desktop", "phone"])
@pytest.mark.parametrize("address", VIEWS)
def test_every_view_is_seen_in_every_window(
    page: Page, heard: list[bytes], address: str, size: tuple[int, int], theme: str
) -> None:
    width, height = size
    page.visit(address, width=width, height=height, theme=theme)
    page.text(VIEWS[address])
    assert page.value("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    assert page.value(
        "document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth"
    )
    seen = pixels(page.browser.screenshot(width=width, height=height, scale=0.25))
    assert len(np.unique(seen.reshape(-1, 3), axis=0)) > 40
    background = np.median(seen, axis=(0, 1)).mean()
    assert background > 235 if theme == "light" else background < 45
    page.clean(heard)


def test_hostile_records_stay_text(page: Page, heard: list[bytes]) -> None:
    page.visit("")
    for row, text in enumerate([*hostile.TEXTS, hostile.LONG]):
        for tab in ("tokens", "text", "raw"):
            page.value(f"location.hash = '#/samples?row={row}&at={row}&tab={tab}'")
            page.see(
                f"document.querySelector('.chip:nth-child(2)')?.textContent === 'record {row}'"
            )
            page.see(f"document.querySelector('[aria-selected=true][data-tab={tab}]') !== null")
            assert (
                page.value(
                    "document.querySelectorAll('main script, main iframe, main img, main link, main object').length"
                )
                == 0
            )
            shown = page.value("document.querySelector('.sample-body').textContent")
            assert not any(char in shown for char in "\x00\x1b\x07\u202e\u2066\u200b\u2028")
            if text.isascii() and text.isprintable() and tab == "text":
                assert text[:150_000] in shown
    assert page.value("document.querySelectorAll('.list-row').length") < 40
    page.clean(heard)


@pytest.mark.soak
def test_keys_move_search_jump_and_switch(page: Page, heard: list[bytes]) -> None:
    page.visit("")
    chosen = "Number(new URLSearchParams(location.hash.split('?')[1]).get('row'))"
    page.see(
        "location.hash.includes('row=0') && document.querySelectorAll('[data-tab]').length > 0"
    )
    for key, row in (("j", 1), ("j", 2), ("k", 1)):
        page.press(key)
        page.see(f"{chosen} === {row}")
    page.value("document.querySelector('.list').focus()")
    page.press("ArrowDown")
    page.see(f"{chosen} === 2")
    page.press("End")
    page.see(f"{chosen} === 629")
    page.see(
        "document.querySelector('[aria-selected=true]').getBoundingClientRect().bottom <= innerHeight"
    )
    page.press("x")
    page.see("document.querySelector('[data-tab=text]').getAttribute('aria-selected') === 'true'")
    page.press("g")
    assert page.value("document.activeElement.closest('.jump') !== null")
    for key in ("3", "0", "0"):
        page.press(key)
    page.press("Enter")
    page.see(f"{chosen} === 300")
    page.value("document.activeElement.blur()")
    page.press("/")
    assert page.value("document.activeElement.name") == "q"
    page.browser.ask("Input.insertText", text="FOX 17 runs")
    page.see("/^2 of 630 records$/m.test(document.querySelector('.list-said').innerText)")
    page.value("document.activeElement.blur()")
    page.press("?")
    assert page.value("document.getElementById('help').open")
    page.press("Escape")
    page.see("!document.getElementById('help').open")
    for key, view in (
        ("2", "run"),
        ("3", "what-if"),
        ("4", "live"),
        ("5", "losses"),
        ("6", "data"),
        ("1", "samples"),
    ):
        page.press(key)
        page.see(
            f"location.hash.startsWith('#/{view}') && document.querySelector('nav [aria-current]').dataset.view === '{view}'"
        )
    page.clean(heard)


@pytest.mark.soak
def test_a_link_and_the_back_button_restore_what_was_seen(page: Page, heard: list[bytes]) -> None:
    page.visit("#/samples?q=brown&length_to=60&row=30&at=8")
    page.text("fox 15 runs")
    assert page.value("document.querySelector('[name=q]').value") == "brown"
    assert page.value("document.querySelector('[name=length_to]').value") == "60"
    page.click(".positions a")
    page.see("Boolean(document.querySelector('.step h2'))")
    step = page.value("document.querySelector('.step h2').textContent")
    page.click(".piece")
    page.see("document.querySelector('main').classList.contains('samples')")
    page.value("setTimeout(() => history.back()) && null")
    page.see(f"document.querySelector('.step h2')?.textContent === {json.dumps(step)}")
    page.value("setTimeout(() => history.back()) && null")
    page.text("fox 15 runs")
    assert page.value("document.querySelector('[name=q]').value") == "brown"
    page.clean(heard)


@pytest.mark.soak
def test_filters_narrow_the_list_and_say_how_far(page: Page, heard: list[bytes]) -> None:
    page.visit("#/samples")
    page.text("630 records")
    typed = "c.dispatchEvent(new Event('input', {bubbles: true}))"
    set_value = f"(name, value) => {{ const c = document.querySelector(`[name=${{name}}]`); c.value = value; {typed}; }}"
    page.value(f"({set_value})('reason', 'overlong')")
    page.see("location.hash.includes('reason=overlong')")
    page.see("/^\\d+ of 630 records$/m.test(document.querySelector('.list-said').innerText)")
    page.see(
        "[...document.querySelectorAll('.row-facts')].every((each) => each.innerText.includes('overlong'))"
    )
    page.value(f"({set_value})('length_from', 'many')")
    page.text("length_from is 'many', expected a number")
    page.value("document.querySelector('[type=reset]').click()")
    page.see("/^630 records$/m.test(document.querySelector('.list-said').innerText)")
    assert page.browser.errors == [
        "error: Failed to load resource: the server responded with a status of 400 (Bad Request)"
    ]
    page.browser.errors.clear()
    page.clean(heard)


@pytest.mark.soak
def test_a_pasted_step_is_opened_marked_and_becomes_a_line_of_the_recipe(
    page: Page, heard: list[bytes]
) -> None:
    page.visit("#/run")
    page.text("Packing efficiency")
    page.value("document.querySelector('[aria-label=\"Go to step\"]').focus()")
    page.browser.ask("Input.insertText", text="loss spike at step 12!")
    page.press("Enter")
    page.text("Step 12")
    page.value(
        "[...document.querySelectorAll('button')].find((each) => each.textContent === 'Mark to skip').click()"
    )
    page.see("document.querySelector('.copy-line code')?.textContent === 'skip_steps: [12]'")
    assert Recipe.of(
        "x.jsonl",
        skip_steps=json.loads(
            page.value("document.querySelector('.copy-line code').textContent.split(': ')[1]")
        ),
    ).settings["skip_steps"]
    page.value("document.querySelector('.frame').focus()")
    page.press("ArrowRight")
    page.text("Step 13")
    page.click(".step details summary")
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    page.clean(heard)


@pytest.mark.soak
def test_a_step_brings_its_epoch_and_a_wrong_address_the_samples(
    page: Page, heard: list[bytes]
) -> None:
    page.visit("#/run")
    steps = page.see("Number(document.querySelector('.tiles dd').firstChild.textContent)")
    page.value(f"location.hash = '#/run?step={steps + 1}'")
    page.see(f"document.querySelector('.step h2').textContent === 'Step {steps + 1}'")
    page.see("document.querySelector('.toolbar [type=number]').value === '1'")
    page.see("document.querySelectorAll('.step-mark').length > 0")
    page.value(f"location.hash = '#/run?step={2 * steps - 1}'")
    page.see("document.querySelector('[aria-label=\"Next step\"]').disabled")
    page.value("location.hash = '#/constructor'")
    page.text("630 records")
    page.clean(heard)


@pytest.mark.soak
def test_positions_of_one_sample_are_not_written_below_another(
    page: Page, heard: list[bytes]
) -> None:
    page.visit("#/samples?row=20&at=20")
    page.see("document.querySelectorAll('.positions a').length > 0")
    page.value(
        "(() => { const ask = window.fetch; const gate = new Promise((open) => { window.release = open; });"
        " window.fetch = async (...given) => { const found = await ask(...given);"
        " if (String(given[0]).includes('positions')) { window.held = true; await gate; } return found; }; })()"
    )
    page.value("location.hash = '#/samples?row=21&at=21'")
    page.see("window.held")
    page.value(f"location.hash = '#/samples?row={len(hostile.TEXTS) + 1}&at=14'")
    page.text("This record gave no sample")
    page.value("window.release(), new Promise((done) => setTimeout(done, 100))")
    assert page.value("document.querySelector('.places').textContent") == ""
    page.clean(heard)


@pytest.mark.soak
def test_a_slider_that_does_not_move_keeps_its_weight(page: Page, heard: list[bytes]) -> None:
    page.visit("#/what-if?weights=0.0123,1")
    page.text("these settings")
    page.value(
        "(() => { const slide = document.querySelectorAll('[name=weight]')[1]; slide.value = 30;"
        " slide.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    page.see("decodeURIComponent(location.hash) === '#/what-if?weights=0.0123,0.6'")
    page.clean(heard)


@pytest.mark.soak
def test_sliders_compute_anew(page: Page, heard: list[bytes]) -> None:
    page.visit("#/what-if")
    page.text("these settings")
    cells = "[...document.querySelector('tbody tr').querySelectorAll('.n')].map((each) => each.textContent)"
    before = page.see(cells)
    assert before[0] == before[1] and before[2] == "="
    page.value(
        "const slide = document.querySelector('[type=range]'); slide.value = 24; slide.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    page.see("location.hash === '#/what-if?max_length=64'")
    page.see(f"({cells})[0] !== ({cells})[1]")
    assert page.value("document.querySelector('.copy-line code').textContent") == "max_length: 64"
    page.clean(heard)


@pytest.mark.soak
def test_a_running_job_is_followed(page: Page, hostile_path: Path, heard: list[bytes]) -> None:
    loader = ps.load(
        hostile_path, rank=0, world_size=1, output="numpy", progress="none", on_overlong="drop"
    )
    batches = iter(loader)
    next(batches)
    page.visit("#/live")
    page.text("running")
    page.see(
        f"document.querySelectorAll('.tiles dd')[1].firstChild.textContent === '1 of {len(loader):,}'"
    )
    for _ in batches:
        pass
    page.text("finished")
    page.see(
        f"document.querySelectorAll('.tiles dd')[1].firstChild.textContent === {json.dumps(f'{len(loader):,} of {len(loader):,}')}"
    )
    page.clean(heard)


def test_a_wrong_token_shows_nothing(page: Page) -> None:
    page.browser.visit(page.url.replace(TOKEN, "guess"))
    assert page.value("document.body.innerText").startswith(
        "refused: the token in the URL is wrong"
    )


@pytest.mark.soak
def test_another_page_cannot_read_the_viewer(page: Page, tmp_path: Path) -> None:
    """Not even one that knows the address: neither with a script, nor as a picture, nor in a frame."""
    other = tmp_path / "other.html"
    other.write_text(
        f"<!doctype html><title>other</title><iframe src='{page.url}'></iframe><script src='{page.url}app.js'></script>"
    )
    page.browser.visit(other.as_uri())
    assert (
        page.value(
            f"fetch('{page.url}api/overview').then((answer) => answer.text(), () => 'refused')"
        )
        == "refused"
    )
    assert page.value("document.querySelector('iframe').contentDocument") is None
    assert any(
        "403" in error or "blocked" in error.lower() or "refused" in error.lower()
        for error in page.browser.errors
    )


ROWS, MOST_SECONDS = (1_000_000, 5.0) if SOAK else (100_000, None)  # benchmarks/view.py measures


@pytest.mark.soak
def test_a_large_list_is_never_loaded_as_a_whole(
    chromium: Browser, tmp_path: Path, tokenizer_path: Path, heard: list[bytes]
) -> None:
    """Scroll, jump, filter and search: a few small requests each, and as many elements as rows are seen."""
    with (tmp_path / "many.jsonl").open("w") as file:
        file.writelines(
            f'{{"text": "row {row} of fox{" dog" * (row % 7)}"}}\n' for row in range(ROWS)
        )
    recipe = {
        "data": "many.jsonl",
        "tokenizer": str(tokenizer_path),
        "template": "text",
        "cache_dir": "cache",
        "max_dropped": 1,
        "max_length": 64,
        "batch_size": 8,
        "num_proc": 1,
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    prepare_recipe(Recipe.read(tmp_path / "recipe.yaml").changed(progress="none"))
    view = open_view(tmp_path / "recipe.yaml", world_size=1)
    with served(view) as url:
        page = Page(chromium, url)
        page.visit("")
        page.text(f"{ROWS:,} records")
        wait_for(lambda: view.facts is not None and view.facts.is_complete)
        first = "document.querySelector('.list-row .row-text')?.textContent"
        final = "[...document.querySelectorAll('.row-text')].at(-1)?.textContent"
        chosen = "document.querySelector('[aria-selected=true]')?.textContent"
        counted = (
            "/^[\\d,]+ of [\\d,]+ records$/m.test(document.querySelector('.list-said').innerText)"
        )
        scroll = "const list = document.querySelector('.list'); list.scrollTop = list.scrollHeight - list.clientHeight"
        middle, last = ROWS // 2, ROWS - 1

        steps = {
            f"{scroll}; list.scrollTop /= 2": f"Math.abs(Number({first}?.split(' ')[1]) - {middle}) < {ROWS // 1000}",
            scroll: f"{final}?.startsWith('row {last} ')",
            f"location.hash = '#/samples?row={middle}&at={middle}'": f"{chosen}?.startsWith('row {middle} ')",
            "location.hash = '#/samples?length_from=12'": counted,
            f"location.hash = '#/samples?q=ROW%20{last}%20'": f"{first}?.startsWith('row {last} ')",
            "location.hash = '#/samples?q=Dog%20dog%20dog'": f"{first} === 'row 3 of fox dog dog dog'",
            "location.hash = '#/run?step=77'": "document.querySelector('.step h2')?.textContent === 'Step 77'",
            "location.hash = '#/what-if?max_length=16'": "document.querySelector('.copy-line code')?.textContent === 'max_length: 16'",
        }
        page.value(
            f"fetch('{url}api/rows?q=row').then((answer) => answer.status)"
        )  # begins the index
        wait_for(lambda: view._indexes["record"].state["over"])
        for act, shows in steps.items():
            before = len(page.browser.requests)
            page.value(f"(() => {{ {act} }})()")
            began = time.monotonic()
            page.see(f"Boolean({shows})")
            seconds = time.monotonic() - began
            assert MOST_SECONDS is None or seconds < MOST_SECONDS, (act, seconds)
            assert page.value("document.querySelectorAll('.list-row').length") < 40
            asked = [each for each in page.browser.requests[before:] if "/api/rows" in each]
            assert len(asked) <= 12, asked
        page.clean(heard)
