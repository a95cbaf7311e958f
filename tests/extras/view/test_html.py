"""Is the page whole, bounded, the same each time, and made of nothing but our own tags, whatever the data say?"""

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import words
from penstock.cli.main import run
from penstock.errors import PenstockError
from penstock.extras.view import html, samples
from penstock.report import numbers, trace
from tests.extras.view import hostile

Write = Callable[..., Path]

VOID = {"meta", "input", "img"}
TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "script",
        "header",
        "nav",
        "main",
        "section",
        "footer",
        "article",
        "figure",
    ),
    *(
        "figcaption",
        "h1",
        "h2",
        "h3",
        "p",
        "div",
        "span",
        "small",
        "strong",
        "b",
        "i",
        "u",
        "s",
        "em",
        "a",
        "bdi",
        "code",
        "pre",
    ),
    *(
        "ul",
        "ol",
        "li",
        "dl",
        "dt",
        "dd",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "details",
        "summary",
    ),
    *("button", "input", "output", "svg", "g", "rect", "line", "path", "text", "img"),
}


class Page(HTMLParser):
    """Tags, attributes and text of a page, and whether all that opens closes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(data)


def check_page(text: str) -> Page:
    """Only our own tags, no attribute that runs, styles or loads, links only within the page, the policy true."""
    page = Page(text)
    assert page.open == [] and page.tags <= TAGS, page.tags - TAGS
    for tag, name, value in page.attributes:
        if (tag, name) == ("img", "src"):
            assert re.fullmatch(r"data:image/jpeg;base64,[A-Za-z0-9+/]+=*", value), value[:80]
            continue
        assert not name.startswith("on") and name not in (
            "style",
            "src",
            "srcset",
            "action",
            "data",
            "xlink:href",
        ), (
            tag,
            name,
        )
        assert name != "href" or value.startswith("#"), value
    links = {value[1:] for _, name, value in page.attributes if name == "href"}
    assert links <= set(page.ids) and len(page.ids) == len(set(page.ids))
    policy = next(
        value
        for tag, name, value in page.attributes
        if tag == "meta" and value.startswith("default-src")
    )
    for kind in ("style", "script"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert (
        policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy
    )
    steering = [
        char for char in text if char != "\n" and char != "\t" and words.escape(char) != char
    ]
    assert steering == [], "every character that steers is spelled out"
    assert len(text.encode()) < html.MOST_BYTES
    return page


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
    given = {
        "batch_size": 2,
        "max_length": 256,
        "rank": 0,
        "world_size": 2,
        "output": "numpy",
        "max_dropped": 1,
        **options,
    }
    return ps.Loader(stores, **given)


def epoch_sample(
    loader: ps.Loader, choices: list[samples.Choice], num_rows: int
) -> samples.EpochSample:
    found = samples.EpochSample(loader, choices, num_rows)
    numbers.epoch(loader, visit=found.add)
    return found


def test_a_page_says_what_the_numbers_say(stores: dict[str, Any]) -> None:
    made = loader(stores)
    text = html.page(made, title="two sources", recipe="data: first.jsonl # <b>\n")
    page = check_page(text)
    said = " ".join(" ".join(page.text).split())
    epoch, (first, second) = numbers.epoch(made), numbers.sources(made)
    for expected in (
        "two sources",
        f"{first.samples + second.samples:,}",
        f"{first.tokens:,}",
        f"{second.tokens:,}",
        f"{epoch.rows:,} rows of 256",
        f"{epoch.steps:,}",
        epoch.plan,
        epoch.order,
        first.store,
        "15 of 220 records (6.8 %) were dropped when prepared",
        "largest share in first (10 %).",
        "first.jsonl:10",
        "data: first.jsonl # <b>",
    ):
        assert expected in said, expected
    assert html.page(made, title="two sources", recipe="data: first.jsonl # <b>\n") == text, (
        "the same page each time"
    )
    assert html.page(loader(stores, seed=1)) != html.page(loader(stores))


def test_an_epoch_is_packed_once_for_the_page(stores: dict[str, Any]) -> None:
    """Other lengths and packings are packed by plans of their own."""
    made = loader(stores)
    pack, packed = made.plan.blocks.pack, []

    def counted(epoch: int, number: int) -> Any:
        packed.append((epoch, number))
        return pack(epoch, number)

    made.plan.blocks.pack = counted  # type: ignore[method-assign]
    html.page(made)
    assert packed == [(0, 0), (0, 1)], "the only block, and that there is no other"


def test_every_row_is_counted_and_those_drawn_are_the_loaders(
    stores: dict[str, Any], write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    """Of text, where all is trained, and of conversations, where answers are."""
    turns = [
        [
            {"role": who, "content": f"the fox {row} " * (1 + row % 5)}
            for who in ("user", "assistant")
        ]
        for row in range(60)
    ]
    path = write_jsonl([{"messages": each} for each in turns], "chat.jsonl")
    chat = ps.prepare(
        path,
        tokenizer=tokenizer_path,
        template="messages",
        cache_dir=tmp_path / "cache",
        num_proc=1,
    )
    mixed = {"first": stores["first"], "chat": chat}
    made = loader(mixed, align=8)
    found = epoch_sample(made, samples.choose_samples(made, 12), num_rows=9)
    rows = made.plan.num_rows(0)
    assert sum(found.fills) == rows
    assert [each.number for each in found.rows] == [place * rows // 9 for place in range(9)]
    batches = [list(loader(mixed, align=8, rank=rank)) for rank in range(2)]
    for each in found.rows:
        labels = batches[each.row.rank][each.row.step]["labels"][each.row.row]
        drawn = np.zeros(256, bool)
        for start, stop in each.trained:
            drawn[start:stop] = True
        assert drawn.tolist() == (np.asarray(labels) >= 0).tolist()
        assert each.row == trace.step(made, each.row.step).rows[each.number % 4]


def test_rows_are_found_also_far_into_an_epoch(
    write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    path = write_jsonl({"text": f"{row}"} for row in range(20_000))
    store = ps.prepare(
        path, tokenizer=tokenizer_path, template="text", cache_dir=tmp_path / "cache", num_proc=1
    )
    made = loader(store, packing="none", max_length=16)
    found = epoch_sample(made, samples.choose_samples(made, 6), num_rows=5)
    assert [each.number for each in found.rows] == [0, 4_000, 8_000, 12_000, 16_000] and sum(
        found.fills
    ) == 20_000
    for each in found.rows:
        assert each.row == trace.step(made, each.row.step).rows[each.number % 4]
    for each in found.samples():
        (landing,) = each.record.landings
        row = trace.step(made, landing.step, rank=landing.rank).rows[landing.row]
        assert [(part.sample, part.place) for part in row.segments] == [
            (each.record.sample, landing.place)
        ]


def test_samples_are_chosen_by_name_and_seed_and_land_where_a_trace_finds_them(
    stores: dict[str, Any],
) -> None:
    made = loader(stores, on_overlong="split", max_length=64)
    picks = samples.choose_samples(made, 10)
    assert picks == samples.choose_samples(loader(stores, on_overlong="split", max_length=32), 10)
    assert picks != samples.choose_samples(loader(stores, seed=5), 10)
    assert {pick.why for pick in picks} == {
        "longest",
        "shortest",
        "random",
        "dropped: nothing_to_train",
    }
    for each in epoch_sample(made, picks, num_rows=1).samples():
        there = trace.record(made, each.choice.sample, source=each.choice.source)
        assert each.record == replace(
            there, outcome=each.record.outcome
        ) and each.num_tokens == len(there.tokens)
        assert not there.tokens or each.record.outcome == there.outcome


def test_a_long_sample_is_drawn_by_its_ends(
    write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    path = write_jsonl([{"text": hostile.LONG}, {"text": "short"}])
    store = ps.prepare(
        path, tokenizer=tokenizer_path, template="text", cache_dir=tmp_path / "cache", num_proc=1
    )
    made = loader(store)
    (pick,) = [pick for pick in samples.choose_samples(made, 0) if pick.why == "longest"]
    (found,) = samples.shown_samples(made, [pick], [None])
    assert found.num_tokens == len(store[0]) > 100_000 and len(found.record.raw) > 1_000_000
    head, tail = found.record.tokens[: samples.HEAD], found.record.tokens[samples.HEAD :]
    assert (len(head), len(tail)) == (
        samples.HEAD,
        samples.TAIL,
    ) and found.left_out == found.num_tokens - 800
    assert [token.id for token in head + tail] == [
        *store[0].input_ids[:700],
        *store[0].input_ids[-100:],
    ]
    assert (
        "".join(token.text for token in head)
        == hostile.LONG[: sum(len(token.text) for token in head)]
    )
    assert tail[-1].text == "<|endoftext|>" and tail[-1].id in found.special
    text = html.page(made)
    check_page(text)
    assert f"… {len(found.record.raw) - 6_000:,} more characters" in text
    assert "tokens are not shown" in text and len(text) < 150_000


@pytest.mark.parametrize("packing", ["best_fit", "none"])
def test_hostile_data_stay_text(
    packing: str, write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    path = write_jsonl(
        [{"text": text} for text in [*hostile.TEXTS, hostile.LONG]], hostile.FILE_NAME
    )
    store = ps.prepare(
        path, tokenizer=tokenizer_path, template="text", cache_dir=tmp_path / "cache", num_proc=1
    )
    made = loader({hostile.SOURCE_NAME: store}, packing=packing)
    page = check_page(
        html.page(
            made, title="".join(hostile.TEXTS) + "\ud800", recipe="\x00</pre>" + hostile.TEXTS[0]
        )
    )
    text = "".join(page.text)
    for expected in (
        "</script><script>",
        "\\x00",
        "\\u202e",
        "\\u2028",
        "\\u200b",
        "\\U000e0041",
        "\\xa0",
        "👩‍👩‍👧",
        "שלום",
    ):
        assert expected in text, expected
    assert hostile.CANARY in text


def test_tokens_in_colour_are_the_sample_and_its_mask(
    write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    turns = [
        ("user", "the quick fox?\n"),
        ("assistant", "a lazy <dog> runs \U0001f30a 日本"),
        ("user", "far"),
        ("assistant", "away"),
    ]
    record = {"messages": [{"role": role, "content": content} for role, content in turns]}
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"
    store = ps.prepare(
        write_jsonl([record]),
        tokenizer=tokenizer_path,
        template="messages",
        cache_dir=tmp_path / "cache",
        num_proc=1,
        chat_template=template,
    )
    text = html.page(loader(store))
    check_page(text)
    (drawn,) = re.findall(
        r'<div class="tokens text"[^>]*data-ids="([\d ]*)"[^>]*>(.*?)</div>', text, flags=re.DOTALL
    )
    tokens = re.findall(r'<(b|i)( class="sp")?>(.*?)</\1>', drawn[1], flags=re.DOTALL)
    sample = store[0]
    assert [int(number) for number in drawn[0].split()] == sample.input_ids.tolist()
    assert [
        tag == "b" for tag, _, _ in tokens
    ] == sample.loss_mask.tolist() and 0 < sample.loss_mask.sum() < len(sample)
    eos = store.template.tokenizer.eos_id  # type: ignore[attr-defined]
    assert [bool(special) for _, special, _ in tokens] == [
        number == eos for number in sample.input_ids.tolist()
    ]
    plain = unescape("".join(content for _, _, content in tokens)).replace("<u>↵</u>", "")
    assert plain == "".join(f"{role}: {content}<|endoftext|>" for role, content in turns)


def test_a_page_of_many_sources_is_bounded(stores: dict[str, Any]) -> None:
    many = {f"source {number} {'x' * 500}": stores["second"] for number in range(150)}
    text = html.page(loader(many), num_samples=500, num_rows=500, compare=False)
    check_page(text)
    assert "the first 100 of 150" in text and "143 more" in text


@pytest.mark.soak
def test_the_worst_data_make_a_page_of_bounded_size(
    write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    path = write_jsonl(
        [{"text": '\u202e\x00<"' * (500 + row)} for row in range(120)],
        "<" * 200 + "\u202e" * 10 + ".jsonl",
    )
    store = ps.prepare(
        path, tokenizer=tokenizer_path, template="text", cache_dir=tmp_path / "cache", num_proc=1
    )
    many = {"\u202e" * 300 + str(number): store for number in range(60)}
    made = loader(many, max_length=16_384)
    check_page(
        html.page(made, num_samples=300, num_rows=300, recipe="\x00" * 50_000, compare=False)
    )


def test_without_a_plan_the_page_says_why(stores: dict[str, Any]) -> None:
    text = html.page(loader(stores, on_overlong="error", max_length=8))
    said = " ".join(check_page(text).text)
    assert (
        "No epoch can be planned:" in said
        and "max_length is 8" in said
        and 'id="rows"' not in text
        and 'id="samples"' in text
    )


def test_nothing_but_empty_records_is_a_page_too(
    write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    path = write_jsonl([{"text": ""}] * 3)
    store = ps.prepare(
        path, tokenizer=tokenizer_path, template="text", cache_dir=tmp_path / "cache", num_proc=1
    )
    assert "3 of 3 records (100\u00a0%)" in "".join(check_page(html.page(loader(store))).text)


def test_samples_without_a_tokenizer_show_their_ids(write_jsonl: Write, tmp_path: Path) -> None:
    path = write_jsonl([{"input_ids": [5, 6, row], "labels": [-100, 6, row]} for row in range(30)])
    store = ps.prepare(path, cache_dir=tmp_path / "cache", num_proc=1, vocab_size=100)
    page = check_page(html.page(loader(store, max_length=16)))
    assert "[5]" in page.text and "66.7\u00a0%" in page.text


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [
        (0, 5, "0 %"),
        (5, 5, "100 %"),
        (1, 3, "33.3 %"),
        (1, 10**6, "< 0.1 %"),
        (999_999, 10**6, "> 99.9 %"),
        (1, 0, "–"),
    ],
)
def test_a_share_is_never_rounded_to_all_or_nothing(part: int, whole: int, expected: str) -> None:
    assert html.share(part, whole).replace("\u00a0", " ") == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1_000, "1 k"),
        (1_234_567, "1.23 M"),
        (2.5, "2.5"),
        (999_999, "1,000 k"),
    ],
)
def test_a_short_number(number: float, expected: str) -> None:
    assert words.short_number(number) == expected


def test_only_a_report_is_replaced(stores: dict[str, Any], tmp_path: Path) -> None:
    made, target = loader(stores), tmp_path / "page.html"
    size = html.write(made, target, num_samples=1, num_rows=1)
    assert target.stat().st_size == size == html.write(made, target, num_samples=1, num_rows=1)
    assert [file.name for file in tmp_path.glob(".page*")] == []
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(
        PenstockError,
        match=r"notes\.txt: exists and is not a report, so it is not replaced; choose another name",
    ):
        html.write(made, other)
    with pytest.raises(PenstockError, match="exists and is not a report"):
        html.write(made, tmp_path)
    with pytest.raises(PenstockError, match=r"the folder .*nowhere does not exist; create it"):
        html.write(made, tmp_path / "nowhere" / "page.html")
    assert other.read_text() == "mine"


def test_the_command_writes_the_page(
    write_jsonl: Write,
    tokenizer_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    write_jsonl([{"text": f"the quick fox {row}"} for row in range(40)], "prose.jsonl")
    recipe = tmp_path / "fox.yaml"
    recipe.write_text(
        f"data: prose.jsonl\ntokenizer: {tokenizer_path}\nmax_length: 128\nbatch_size: 2\nnum_proc: 1\n"
    )
    assert run(["report", "fox.yaml", "-o", "fox.html", "--world-size", "2", "--no-compare"]) == 0
    assert re.fullmatch(r"fox\.html: [\d.]+ kB, open it in a browser\n", capsys.readouterr().out)
    text = (tmp_path / "fox.html").read_text()
    assert (
        "<title>fox – Penstock report</title>" in text
        and "max_length and packing compared" not in text
        and "max_length: 128" in text
    )
    check_page(text)
    assert (
        run(
            [
                "report",
                "prose.jsonl",
                "--tokenizer",
                str(tokenizer_path),
                "--option",
                "eos=false",
                "--json",
            ]
        )
        == 0
    )
    assert (
        '"page": "report.html"' in capsys.readouterr().out
        and "max_length and packing compared" in (tmp_path / "report.html").read_text()
    )
    assert run(["report", "fox.yaml", "-o", "prose.jsonl"]) == 3
    assert "exists and is not a report" in capsys.readouterr().err
