"""Every number that the commands print about one recipe agrees with the others, and with a count made by hand."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.words import WORDS

Write = Callable[..., Path]


def words(chance: random.Random, most: int) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(1, most)))


def rows(chance: random.Random, number: int) -> list[dict[str, Any]]:
    """Conversations, some of them without an answer."""
    made = []
    for row in range(number):
        answer = "" if row % 11 == 5 else words(chance, 34)
        turns = [
            {"role": "user", "content": words(chance, 16)},
            {"role": "assistant", "content": answer},
        ]
        made.append({"messages": turns if row % 17 else turns[:1]})
    return made


def number(text: str) -> int:
    return int(text.replace(",", ""))


class Printed:
    """What the commands print, as people and as programs see it."""

    def __init__(self, here: Any, recipe: Path) -> None:
        run = {
            name: here(name, recipe, "--set", "num_proc=1") for name in ("stats", "plan", "prepare")
        }
        run["check"] = here("check", recipe, "--rows", "0", "-v")
        assert {name: code for name, (code, _, _) in run.items()} == dict.fromkeys(run, 0)
        assert here("report", recipe, "-o", "report.html")[0] == 0
        self.text = {name: out for name, (_, out, _) in run.items()}
        page = Path("report.html").read_text()
        [answers] = re.findall(r'<script type="application/json" id="answers">(.*?)</script>', page)
        self.page = json.loads(answers)

    def find(self, command: str, pattern: str) -> list[int]:
        found = re.search(pattern, self.text[command], flags=re.MULTILINE)
        assert found is not None, (command, pattern, self.text[command][:3000])
        return [number(part) for part in found.groups()]


@pytest.mark.extra("view")  # which makes the report page
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "settings",
    [
        "max_length: 64",
        "max_length: 96\npacking: none",
        "max_length: 64\non_overlong: truncate",
        "max_length: 128\nlast_step: drop",
    ],
)
def test_commands_print_the_same_numbers(
    here: Any, write_jsonl: Write, chat_tokenizer: Path, tmp_path: Path, seed: int, settings: str
) -> None:
    made = rows(random.Random(seed), 150)
    write_jsonl(made, "talk.jsonl")
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        f"data: talk.jsonl\ntokenizer: {chat_tokenizer}\ntemplate: messages\nbatch_size: 4\nmax_dropped: 1\n{settings}\n"
    )
    printed = Printed(here, recipe)

    # by hand, from the samples and from the batches alone
    loader = ps.load(
        recipe, output="numpy", cache_dir=tmp_path / "cache", num_proc=1, rank=0, world_size=1
    )
    samples = [sample for sample in loader.stores[0] if len(sample)]
    tokens = sum(len(sample) for sample in samples)
    targets = sum(int(sample.loss_mask[1:].sum()) for sample in samples)
    batches = list(loader)
    filled = [tuple(row) for batch in batches for row in batch.provenance]
    used = sum(stop - start for row in filled for _, start, stop in row)
    max_length = loader.plan.settings.max_length
    too_long = sum(len(sample) > max_length for sample in samples)

    row = printed.find("stats", r"^talk\t([\d,]+)\t([\d,]+)\t([\d,]+)\t([\d,]+)\t")
    assert row == [len(made), len(samples), tokens, targets]
    assert printed.find("check", r"trained tokens +([\d,]+) of ([\d,]+) tokens") == [
        targets,
        tokens,
    ]
    assert printed.find("check", r"bad records +([\d,]+) of ([\d,]+) records read: all fine") == [
        len(made),
        len(made),
    ]
    assert (
        printed.find("prepare", r"talk: ([\d,]+) records → ([\d,]+) samples, ([\d,]+) tokens")
        == row[:3]
    )
    assert printed.find("stats", r"^tokens per sample, ([\d,]+) samples") == [len(samples)]
    dropped = sum(
        map(
            number,
            re.findall(
                r"^talk\t\w+\t([\d,]+)\t[\d.]+%\t\S+talk", printed.text["stats"], flags=re.MULTILINE
            ),
        )
    )
    assert dropped == len(made) - len(samples)
    assert printed.find("check", r"records without loss +([\d,]+) of ([\d,]+) records") == [
        dropped,
        len(made),
    ]
    assert (
        printed.find("plan", r"^steps\t([\d,]+) per epoch, ([\d,]+) in the whole run")
        == [len(batches)] * 2
    )
    assert printed.find("plan", r"^rows per step\t([\d,]+):") == [4]
    if "last_step: drop" not in settings:
        assert printed.find("plan", r"^rows\t([\d,]+), each of up to ([\d,]+) tokens") == [
            sum(map(bool, filled)),
            max_length,
        ]
        assert printed.find("plan", r"^talk\t([\d,]+)\t100\.00%\t([\d,]+)\t")[1] == used
    said = re.search(
        r"^dropped when packed \(.*?\), per epoch: (.*)$", printed.text["stats"], flags=re.MULTILINE
    )
    in_plan = re.search(r"^dropped\t(.*) \(on_overlong: ", printed.text["plan"], flags=re.MULTILINE)
    assert said is not None and in_plan is not None and said[1] == in_plan[1], (
        "stats and plan say the same"
    )
    assert set(re.findall(r"of ([\d,]+) samples", said[1])) == {f"{len(samples):,}"}, (
        "records that gave none are no samples"
    )
    if too_long:
        what = "cut at max_length" if "truncate" in settings else "too long"
        assert f"{too_long:,} of " in said[1] and what in said[1]
        assert printed.find("check", r"too long +([\d,]+) of ([\d,]+) records \(") == [
            too_long,
            len(made),
        ]
    on_page = printed.page["run"]["numbers"]
    assert on_page["steps"] == len(batches)
    assert sum(on_page["counters"]["samples_dropped"].values()) >= too_long * (
        "truncate" not in settings
    )
    cells = [row for piece in printed.page["summary"]["pieces"] for row in piece["rows"]]
    assert ["talk", *(f"{count:,}" for count in row)] in [cell[:5] for cell in cells]
    _, out, _ = here("stats", recipe, "--set", "num_proc=1", "--json")
    histogram = json.loads(out)["lengths"]["histogram"]
    beyond = sum(
        c
        for low, c in zip(histogram["edges"], histogram["counts"], strict=False)
        if low >= max_length
    )
    assert beyond == too_long or not np.isin(max_length, histogram["edges"]), (
        "bars beyond max_length are what is too long"
    )


def test_a_sample_of_exactly_max_length_is_not_drawn_as_too_long(
    here: Any, write_jsonl: Write, tmp_path: Path
) -> None:
    ids = [{"input_ids": [1] * length} for length in [64] * 9 + [65] * 2 + [20] * 5]
    write_jsonl(ids, "ids.jsonl")
    (tmp_path / "r.yaml").write_text(
        "data: ids.jsonl\ntemplate: pretokenized\nvocab_size: 9\nmax_length: 64\nbatch_size: 1\nnum_proc: 1\n"
    )
    _, out, _ = here("stats", "r.yaml")
    bars = {line.split()[0]: line for line in out.splitlines() if "█" in line or "░" in line}
    assert "█" in bars["49–64"] and " 9 " in bars["49–64"], out
    assert "░" in bars["65–96"] and " 2 " in bars["65–96"]
    assert "░ longer than max_length (64)" in out
    assert "per epoch: 2 of 16 samples (12.5%, too long, 130 tokens)" in out


@pytest.mark.extra("view")
def test_one_data_set_has_one_name(here: Any, write_jsonl: Write, chat_tokenizer: Path) -> None:
    write_jsonl(rows(random.Random(0), 30), "talk.tools.jsonl")
    _, out, _ = here("init", "talk.tools.jsonl", "--tokenizer", chat_tokenizer)
    assert out.startswith("talk.tools: jsonl, 30 records")
    for command, begins in (
        (("check", "recipe.yaml"), "talk.tools: 30 records"),
        (("show", "recipe.yaml", "--row", "0"), "talk.tools, record 0  "),
        (("stats", "recipe.yaml"), "prepared"),
        (("plan", "recipe.yaml"), "epoch 0"),
    ):
        code, out, err = here(*command)
        assert code == 0 and out.startswith(begins), (command, out, err)
        assert re.search(r"^talk\.tools[\t,:]", out, flags=re.MULTILINE) and not re.search(
            r"^data[\t,:]", out, flags=re.MULTILINE
        )
    assert here("report", "recipe.yaml", "--no-compare")[0] == 0
    assert "<title>talk.tools – penstock</title>" in Path("report.html").read_text()


def test_a_plan_without_rows_does_not_claim_to_be_full(
    here: Any, write_jsonl: Write, tokenizer_path: Path
) -> None:
    write_jsonl([{"text": " ".join(WORDS)}] * 5, "t.jsonl")
    _, out, _ = here(
        "plan", "t.jsonl", "--tokenizer", tokenizer_path, "--max-length", "4", "--set", "num_proc=1"
    )
    assert (
        "rows\t0, each of up to 4 tokens, nothing to train on" in out
        and "100.00% filled" not in out
    )
    assert "last step\tthere is none: no sample is left to train on" in out
    assert "dropped\t5 of 5 samples (100.0%, too long, " in out
