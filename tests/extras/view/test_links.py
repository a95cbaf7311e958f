"""Links of the viewer lead to what they name, and what they name is seen; in a real browser."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.extras.view.view import Viewer, _preview

from .chromium import Browser, browser
from .conftest import Ask, wait_for
from .test_browser import served
from .test_losses import needs_browser, text, visit

SEEN = "(() => {{ const box = document.querySelector({0}).getBoundingClientRect(); return box.top >= 0 && box.top < innerHeight; }})()"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def url(view: Viewer) -> Iterator[str]:
    with served(view) as address:
        yield address


def is_seen(chromium: Browser, selector: str) -> bool:
    return bool(chromium.value(SEEN.format(json.dumps(selector))))


@needs_browser
def test_a_link_to_a_step_that_does_not_exist_shows_why(chromium: Browser, url: str) -> None:
    """The refusal was below the fold."""
    visit(chromium, f"{url}#/run?step=99999")
    wait_for(lambda: "step 99999 does not exist" in text(chromium, ".step .problem"))
    wait_for(lambda: chromium.value("document.activeElement.textContent") == "Step 99999")
    assert is_seen(chromium, ".step h2") and is_seen(chromium, ".step .problem")


@needs_browser
def test_the_last_step_says_what_is_empty_and_what_is_trained(
    chromium: Browser, url: str, ask: Ask
) -> None:
    numbers = ask("run")["numbers"]
    last = numbers["steps_of_run"] - 1
    step = ask("step", step=last)
    visit(chromium, f"{url}#/run?step={last}")
    wait_for(lambda: text(chromium, ".step h2") == f"Step {last}")
    wait_for(
        lambda: chromium.value("document.querySelector('[aria-label=\"Next step\"]').disabled")
    )
    by_rank = sorted(step["rows"], key=lambda row: row["rank"])
    filled = [row for row in by_rank if row["segments"]]
    assert len(filled) < len(step["rows"])
    shown = text(chromium, ".packed summary").split("\n")
    shares = [f"{100 * row['trained'] / row['used']:.1f}".removesuffix(".0") for row in filled]
    assert [line.split(", ")[-1] for line in shown] == [
        f"{share} % of its tokens trained" for share in shares
    ], "of the tokens of the row, as pages of samples count it"
    assert "empty" in text(chromium, ".rank .note")


@needs_browser
def test_a_hit_is_seen_in_each_line_and_the_named_record_is_marked(
    chromium: Browser, url: str, ask: Ask
) -> None:
    rows = ask("rows", q="assistant", count=30)["rows"]
    visit(chromium, f"{url}#/samples?q=assistant&row={rows[3]['row']}")
    wait_for(
        lambda: (
            "marked" if chromium.value("document.querySelectorAll('.list-row').length") > 5 else ""
        )
    )
    wait_for(lambda: text(chromium, '.list-row[aria-selected="true"] .row-text') == rows[3]["text"])
    lines = "[...document.querySelectorAll('.list-row .row-text')]"
    hit = "line.querySelector('mark')?.getBoundingClientRect().right <= line.getBoundingClientRect().right"
    assert chromium.value(f"{lines}.length > 5 && {lines}.every((line) => {hit})")


@pytest.mark.parametrize(
    ("strings", "wanted", "shown"),
    [
        (["a short one"], "", "a short one"),
        (["a short one"], "SHORT", "a short one"),
        (["x" * 300 + " needle " + "y" * 300], "Needle", "…" + "x" * 11 + " needle "),
        (["x" * 300, "and", "needle"], "needle", "…xxxxxxx and needle"),
        (["x" * 300], "needle", "x" * 240),
    ],
)
def test_a_line_shows_what_was_searched_for(strings: list[str], wanted: str, shown: Any) -> None:
    line = _preview(strings, wanted)
    assert line.startswith(shown) and len(line) <= 241
