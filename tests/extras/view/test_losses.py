"""The page Losses, losses of tokens, the state of a running job, and hits of a search: as values, and in a real browser."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.extras.view.view import Viewer
from penstock.recipe import Recipe
from penstock.recipe.run import prepare_recipe, prepared_counts
from tests.extras.trainers.conftest import need
from tests.extras.view.chromium import Browser, browser, executable
from tests.extras.view.conftest import PATIENCE, Ask, asking, open_view, wait_for, write_recipe
from tests.extras.view.test_browser import served

needs_browser = pytest.mark.skipif(executable() is None, reason="no browser")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, chat_folder: Path) -> Path:
    """A recipe of a run that has logged its loss, and recorded the losses of its samples."""
    need("torch")
    from penstock.trainers.losses import LossBySource
    from tests.extras.losses.bigram import Bigram

    evals = {"held_out": {"path": "second.jsonl"}}
    folder = tmp_path_factory.mktemp("trained")
    path = write_recipe(folder, chat_folder, run_id="mine", eval=evals)
    prepare_recipe(Recipe.read(path).changed(progress="none"))
    loader = ps.load(str(path), rank=0, world_size=1, batch_size=6)
    losses = LossBySource(loader)
    model = Bigram()
    for batch in loader:
        losses.add(batch, logits=model(batch["input_ids"]))
        loader.log(loss=10.0 - batch.step / 10)
    return path


@pytest.fixture(scope="module")
def trained_view(trained: Path) -> Viewer:
    return open_view(trained, run_id="mine", parts=prepared_counts(Recipe.read(trained)))


@pytest.fixture(scope="module")
def ask_trained(trained_view: Viewer) -> Ask:
    return asking(trained_view)


def test_the_page_shows_what_was_recorded(ask_trained: Ask, trained: Path) -> None:
    from penstock.trainers.losses import read_losses

    found = ask_trained("losses", bins=1_000)
    recorded = read_losses("mine", cache_dir=trained.parent / "cache")
    assert found["recorded"] and found["runs"] == ["mine"] and found["missing"] == 0
    assert found["steps"] == list(recorded.steps)
    for source, (total, targets) in recorded.totals().items():
        assert found["totals"][source]["loss"] == pytest.approx(total / targets)
    worst = found["highest"][0]
    expected = recorded.highest(1)[0]
    assert (worst["source"], worst["sample"]) == (expected.source, expected.sample)
    sample = ask_trained("sample", row=worst["row"])
    assert sample["losses"]["loss"] == pytest.approx(expected.loss)
    kept = recorded.tokens_of(expected.source, expected.sample)
    assert len(kept) == expected.targets > 0
    assert sample["losses"]["tokens"] == {
        str(place): pytest.approx(loss, abs=1e-3) for place, loss in kept.items()
    }


def test_a_run_without_losses_has_none(ask_trained: Ask) -> None:
    assert ask_trained("losses", run_id="other") == {
        "runs": ["mine"],
        "rows_per_step": None,
        "run_id": "other",
        "recorded": False,
    }
    assert ask_trained("sample", row=0, run_id="other")["losses"] is None


def test_a_job_says_its_steps_and_what_it_has_logged(ask_trained: Ask) -> None:
    ask_trained("run")
    found = ask_trained("live")
    [rank] = found["ranks"]
    points = rank["logged"]["loss"]
    # the state is written once a second, and at the end, before the last step is logged
    assert len(points) >= rank["step"] - 1 and points[3] == [3, 9.7]
    # the page was opened for two ranks of three rows; the job had one rank of six, for as many epochs as the recipe
    assert found["steps"] == rank["step"] > 10


def test_steps_of_a_job_of_other_ranks_and_epochs_are_its_own(trained: Path) -> None:
    """The page said step 303 of about 52, no time left, and a click on a spike led to records of another step."""
    view = open_view(trained, world_size=4, run_id="mine")  # 12 rows in a step, the job has 6
    ask = asking(view)
    found = wait_for(lambda: ask("live")["steps"] and ask("live"))
    assert found["steps"] == found["ranks"][0]["step"]
    assert (ask("losses")["rows_per_step"], ask("overview")["batch_size"]) == (6, 3)


@needs_browser
def test_no_click_leads_to_a_step_of_other_rows(chromium: Browser, trained: Path) -> None:
    with served(open_view(trained, world_size=4, run_id="mine")) as address:
        visit(chromium, f"{address}#/live")
        wait_for(lambda: "loss" in text(chromium, "figcaption"))
        assert "start it with --world-size 1 --batch-size 6" in text(chromium, ".problem")
        assert "click" not in text(chromium, "figcaption")
        assert text(chromium, "a[href^='#/run?']") == ""
        visit(chromium, f"{address}#/losses")
        wait_for(lambda: "Loss by dataset" in text(chromium, "figcaption"))
        assert "The job has 6 rows in a step" in text(chromium, ".problem")
        assert "click" not in text(chromium, "figcaption")
        assert text(chromium, "a[href^='#/run?']") == ""


def test_the_command_takes_ranks_and_batch_size_of_the_job(trained: Path) -> None:
    """The recipe says 3 rows, the job had 6: a click on its steps must lead to the rows that it trained."""
    words = [sys.executable, "-m", "penstock", "view", str(trained), "--no-browser"]
    for more, expected in (([], (6, 1)), (["--world-size", "2"], (3, 2))):
        server = subprocess.Popen(
            [*words, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=trained.parent
        )
        assert server.stdout is not None
        try:
            address = server.stdout.readline().decode().split()[0]
            with urllib.request.urlopen(f"{address}api/overview", timeout=PATIENCE) as answer:
                found = json.load(answer)
        finally:
            server.terminate()
            said = server.communicate(timeout=60)[1].decode()
        assert (found["batch_size"], found["world_size"]) == expected, said
        assert ("as run mine: --world-size 1 --batch-size 6" in said) == (not more)


def test_many_points_are_thinned_and_a_step_back_replaces_them() -> None:
    from penstock.loader.status import LoggedNumbers

    logged = LoggedNumbers()
    for step in range(10_000):
        logged.add(step, {"loss": float(step)})
    points = logged.as_dict()["loss"]
    assert 500 <= len(points) <= 1_000 and points[0] == (0, 0.0) and points[-1][0] > 9_900
    logged.add(100, {"loss": float("nan")})
    logged.add(101, {"loss": 5.0})
    assert all(step < 100 or value == 5.0 for step, value in logged.as_dict()["loss"])


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def url(trained_view: Viewer) -> Iterator[str]:
    with served(trained_view) as address:
        yield address


def visit(chromium: Browser, address: str) -> None:
    chromium.visit("about:blank")  # else a change of what stands after # loads nothing
    chromium.visit(address)


def text(chromium: Browser, selector: str) -> str:
    script = f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent).join('\\n')"
    return str(chromium.value(script))


@needs_browser
def test_a_click_on_a_curve_leads_to_the_step(chromium: Browser, url: str) -> None:
    visit(chromium, f"{url}#/losses")
    wait_for(lambda: "Loss by dataset" in text(chromium, "figcaption"))
    assert len(text(chromium, ".x-axis span").split("\n")) >= 3
    assert float(text(chromium, ".y-axis span").split("\n")[0]) > 1
    click = (
        "const frame = document.querySelector('.frame'); const box = frame.getBoundingClientRect(); "
        "frame.dispatchEvent(new MouseEvent('click', {clientX: box.left + 1, bubbles: true}))"
    )
    chromium.value(f"{{ {click} }}")
    wait_for(lambda: chromium.value("location.hash") == "#/run?step=0")
    wait_for(lambda: "Step 0" in text(chromium, ".step"))
    wait_for(
        lambda: chromium.value("document.querySelector('.step').getBoundingClientRect().top") < 900
    )
    assert chromium.errors == [] and chromium.lines == []


@needs_browser
def test_tokens_have_the_colour_of_their_loss(
    chromium: Browser, url: str, ask_trained: Ask
) -> None:
    row = ask_trained("losses")["highest"][0]["row"]
    visit(chromium, f"{url}#/samples?row={row}&at={row}&run_id=mine")
    wait_for(lambda: "against its dataset" in text(chromium, ".sample"))
    coloured = "document.querySelectorAll('.text.by-loss b.l4').length"
    assert chromium.value(coloured) > 3  # a random model: above 4 nats


@needs_browser
def test_hits_of_a_search_are_marked(chromium: Browser, url: str) -> None:
    visit(chromium, f"{url}#/samples?q=LAZY%20dog")
    wait_for(lambda: "lazy dog" in text(chromium, ".list-row mark").lower())
    chromium.value("document.querySelector('.list-row').click()")
    wait_for(lambda: chromium.value("document.querySelectorAll('.tokens .hit').length") > 1)
    marked = (
        "[...document.querySelectorAll('.tokens .hit')].map((one) => one.dataset.text).join('')"
    )
    assert "lazy dog" in str(chromium.value(marked)).lower()


@needs_browser
def test_the_evaluation_sets_are_named(chromium: Browser, url: str) -> None:
    visit(chromium, f"{url}#/data")
    wait_for(lambda: "Training and evaluation sets" in text(chromium, "h2"))
    cells = text(chromium, "th, td").split("\n")
    head = cells.index("part")
    assert cells[head + 1 : head + 6] == [
        "records",
        "samples",
        "tokens",
        "trained tokens",
        "dropped",
    ]
    records, samples, _, _, dropped = cells[cells.index("held_out") + 1 :][:5]
    assert (records, int(samples) + int(dropped)) == ("90", 90)
    assert "This page shows train. To look at another one, pass --part" in text(chromium, "section")


@needs_browser
@pytest.mark.parametrize("view", ["losses", "live", "run", "data"])
def test_a_page_fits_a_phone(chromium: Browser, url: str, view: str) -> None:
    chromium.visit("about:blank")
    chromium.visit(f"{url}#/{view}", width=390, height=800, theme="dark")
    wait_for(lambda: chromium.value("document.querySelectorAll('.chart').length") >= 1)
    assert chromium.value("document.documentElement.scrollWidth") <= 390
    assert chromium.value("document.querySelector('main').scrollWidth") <= 390
    assert chromium.errors == [] and chromium.lines == []
