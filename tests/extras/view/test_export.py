"""Is the exported file whole, bounded, the same each time, and safe, whatever the data say?"""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.cli.main import run
from penstock.errors import PenstockError
from penstock.extras.view import choices, export
from penstock.extras.view.export import Export
from penstock.report import numbers, trace
from tests.extras.view import hostile

Write = Callable[..., Path]


@pytest.fixture
def stores(write_jsonl: Write, tokenizer_path: Path, tmp_path: Path) -> dict[str, Any]:
    """Two sources; every tenth record of the first is empty."""
    options: dict[str, Any] = {
        "tokenizer": tokenizer_path,
        "template": "text",
        "cache_dir": tmp_path / "cache",
        "num_proc": 1,
    }
    first = [
        {"text": "" if row % 10 == 9 else f"the quick fox {row} " * (1 + row * 7 % 23)}
        for row in range(150)
    ]
    second = [{"text": f"a lazy dog {row} runs far\n" * (1 + row * 5 % 11)} for row in range(70)]
    return {
        "first": ps.prepare(write_jsonl(first, "first.jsonl"), **options),
        "second": ps.prepare(write_jsonl(second, "second.jsonl"), **options),
    }


def loader(stores: Any, **options: Any) -> ps.Loader:
    settings = {
        "batch_size": 2,
        "max_length": 256,
        "rank": 0,
        "world_size": 2,
        "output": "numpy",
        "max_dropped": 1,
        **options,
    }
    return ps.Loader(stores, **settings)


def test_the_page_says_what_the_chat_template_does_not_print(
    write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    answer = {"role": "assistant", "content": "I run.", "reasoning_content": "the dog"}
    chats = write_jsonl([{"messages": [{"role": "user", "content": "fox"}, answer]}] * 4)
    store = ps.prepare(
        chats,
        tokenizer=tokenizer_path,
        template="messages",
        chat_template="{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}",
        cache_dir=tmp_path / "cache",
        num_proc=1,
    )
    shown = export.page(loader(store), Export())
    assert "not printed by the chat template" in shown and "assistant.reasoning_content" in shown


def answers_of(page: str) -> Any:
    [text] = re.findall(r'<script type="application/json" id="answers">(.*?)</script>', page)
    return json.loads(text)


def words_of(answers: Any) -> str:
    """All words of the tables of the screen `Data`."""
    return json.dumps(answers["summary"], ensure_ascii=False)


def check_policy(page: str) -> None:
    """The file runs and wears only what its policy names by hash, and no data can end an element."""
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    for kind in ("style", "script"):
        [content] = re.findall(rf"<{kind}>(.*?)</{kind}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert page.count("<script") == 2 and page.count("<style") == 1
    assert "src=" not in page.replace("&", "").split("<script>")[0].split("<body>")[0]


def test_a_file_says_what_the_numbers_say(stores: dict[str, Any]) -> None:
    made = loader(stores)
    page = export.page(made, Export(title="two sources", recipe="data: first.jsonl # <b>\n"))
    check_policy(page)
    answers = answers_of(page)
    epoch = numbers.epoch(made)
    first, second = numbers.sources(made)
    said = words_of(answers)
    for expected in (
        f"{first.tokens:,}",
        f"{second.tokens:,}",
        f"{epoch.rows:,}, each of up to 256 tokens",
        epoch.plan[:16],
        epoch.order,
        "first.jsonl:10",
    ):
        assert expected in said, expected
    assert answers["overview"]["recipe"] == "data: first.jsonl # <b>\n"
    assert answers["overview"]["identity"]["first"] == first.store
    assert answers["run"]["numbers"]["steps"] == epoch.steps
    again = export.page(
        loader(stores), Export(title="two sources", recipe="data: first.jsonl # <b>\n")
    )
    assert again == page, "the same file each time"


def test_plots_count_every_sample_and_row(stores: dict[str, Any]) -> None:
    made = loader(stores)
    lengths, trained, fills = export.summary(made, compare=False)["plots"]
    assert sum(lengths["counts"]) == sum(trained["counts"]) == 220 - 15
    assert sum(fills["counts"]) == made.plan.num_rows(0)


def test_samples_and_steps_are_those_of_a_trace(stores: dict[str, Any]) -> None:
    made = loader(stores, on_overlong="split", max_length=64)
    picks = choices.choose_samples(made, 10)
    assert picks == choices.choose_samples(loader(stores, on_overlong="split", max_length=32), 10)
    assert picks != choices.choose_samples(loader(stores, seed=5), 10)
    whys = {pick.why for pick in picks}
    assert whys == {"longest", "shortest", "random", "dropped: nothing_to_train"}
    answers = export.collect(made, Export(num_samples=10, num_steps=3, compare=False))
    assert [row["line"]["why"] for row in answers["samples"].values()] == [p.why for p in picks]
    for pick, shown in zip(picks, answers["samples"].values(), strict=True):
        traced = trace.record(made, pick.sample, source=pick.source)
        tokens = [[token.id, token.text, token.trained] for token in traced.tokens]
        assert [token[:3] for token in shown["sample"]["tokens"]] == tokens
        assert shown["positions"]["landings"] == numbers.plain(traced.landings)
    assert len(answers["steps"]) == 3
    for step, shown in answers["steps"].items():
        assert shown == numbers.plain(trace.step(made, step))


def test_the_worst_data_make_a_bounded_file_that_stays_text(
    write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    path = write_jsonl([{"text": text} for text in [*hostile.TEXTS, *[hostile.LONG] * 12]])
    store = ps.prepare(
        path, tokenizer=tokenizer_path, template="text", cache_dir=tmp_path / "cache", num_proc=1
    )
    made = loader({hostile.SOURCE_NAME: store, "again": store})
    page = export.page(made, Export(title=hostile.TEXTS[0] + "\ud800", num_samples=500))
    check_policy(page)
    assert len(page.encode()) < 1.5 * export.MOST_BYTES
    assert hostile.CANARY in page and "<img" not in page.split("<script>")[0]


def test_without_a_plan_the_file_says_why(stores: dict[str, Any]) -> None:
    made = loader(stores, on_overlong="error", max_length=32)
    answers = answers_of(export.page(made, Export()))
    assert "tokens" in answers["summary"]["problem"] and answers["run"]["error"]
    assert answers["steps"] == {} and answers["samples"]


def test_only_such_a_file_is_replaced(stores: dict[str, Any], tmp_path: Path) -> None:
    made = loader(stores)
    target = tmp_path / "report.html"
    small = Export(compare=False, num_samples=1, num_steps=1)
    assert export.write(made, target, small) == target.stat().st_size
    assert export.write(made, target, small) == target.stat().st_size
    other = tmp_path / "notes.html"
    other.write_text("<p>mine")
    with pytest.raises(PenstockError, match=r"notes\.html: exists and is not a page of penstock"):
        export.write(made, other)
    with pytest.raises(PenstockError, match=r"the folder .* does not exist"):
        export.write(made, tmp_path / "no" / "report.html")
    assert other.read_text() == "<p>mine"
    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["notes.html", "report.html"]


def test_both_commands_write_the_same_file(
    recipe_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--no-compare", "--samples", "3", "--steps", "2", "--json"]
    assert run(["report", str(recipe_path), "-o", str(tmp_path / "one.html"), *options]) == 0
    first = json.loads(capsys.readouterr().out)
    assert run(["view", str(recipe_path), "--export", str(tmp_path / "two.html"), *options]) == 0
    second = json.loads(capsys.readouterr().out)
    assert (tmp_path / "one.html").read_text() == (tmp_path / "two.html").read_text()
    assert first["num_bytes"] == second["num_bytes"] == (tmp_path / "one.html").stat().st_size


@pytest.mark.skipif(
    shutil.which("node") is None, reason="no JavaScript engine: node is not on the PATH"
)
def test_every_view_of_the_file_runs_without_a_server(
    stores: dict[str, Any], tmp_path: Path
) -> None:
    target = tmp_path / "report.html"
    export.write(loader(stores), target, Export(num_steps=2, compare=False))
    row = next(iter(answers_of(target.read_text())["samples"]))
    for view, expected in (
        ("#/data", "Tokens per sample"),
        ("#/samples", "of 220 records"),
        (f"#/samples?row={row}&at=0", "Where it is trained"),
        ("#/run?step=0", "Rank 1"),
        ("#/run?step=1", "This file does not have step 1; it has steps 0, "),
        ("#/live", "Tokens per sample"),
    ):
        script = Path(__file__).with_name("small_dom.js")
        done = subprocess.run(
            ["node", script, target, view], capture_output=True, text=True, check=True
        )
        shown = json.loads(done.stdout)
        assert shown["links"] == ["samples", "run", "data"]
        assert expected in shown["text"], (view, shown["text"][:400])
