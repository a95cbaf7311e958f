"""From nothing to a plan: the commands on a recipe and on data, in processes of their own, also with data that means harm."""

import json
import os
import pty
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from tests.extras.formats.token_files import read_megatron
from tests.words import WORDS

from .conftest import Penstock

Write = Callable[..., Path]

HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e"


def words(row: int) -> str:
    return " ".join(
        WORDS[(row * 7 + place * (row % 3 + 1)) % len(WORDS)] for place in range(2 + row * 13 % 40)
    )


def chat(row: int) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": words(row)},
            {"role": "assistant", "content": words(row + 1)},
        ]
    }


@pytest.fixture
def recipe(write_jsonl: Write, tokenizer_path: Path, tmp_path: Path) -> Path:
    """Two datasets and an eval set."""
    write_jsonl([chat(row) for row in range(120)], "chat.jsonl")
    write_jsonl([{"text": words(row + 500)} for row in range(90)], "prose.jsonl")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"""
data:
  talk: {{path: chat.jsonl, template: messages}}
  prose: {{path: prose.jsonl, template: text}}
eval:
  held_out: {{path: 'prose.jsonl@[:9]', template: text}}
tokenizer: {tokenizer_path}
num_proc: 1
sequence_len: 128
batch_size: 2
"""
    )
    return path


def test_five_minutes_from_data_to_batches(
    command: Penstock, write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    write_jsonl([chat(row) for row in range(300)], "chat.jsonl")
    made = command("init", "chat.jsonl", "--tokenizer", tokenizer_path)
    assert made.returncode == 0, made.stderr
    assert "chat: jsonl, 300 records in 1 file (chat.jsonl)" in made.stdout
    assert "detected template: messages (200 of 200 sampled records match)" in made.stdout
    assert re.search(
        r"tokens per sample: median \d+, p99 \d+, longest \d+ \(300 records sampled\); \d+\.\d% of the",
        made.stdout,
    )
    assert "max_length 1,024: no sample is longer (0 of 300)" in made.stdout
    text = (tmp_path / "recipe.yaml").read_text()
    assert (
        "data: chat.jsonl\n" in text
        and "template: messages" in text
        and "# packing: mixed_fit" in text
    )
    loader = ps.load(
        tmp_path / "recipe.yaml",
        output="numpy",
        cache_dir=tmp_path / "cache",
        num_proc=1,
        rank=0,
        world_size=1,
    )
    assert len(list(loader)) == len(loader) > 1
    again = command("init", "chat.jsonl", "--tokenizer", tokenizer_path)
    assert again.returncode == 3
    assert (
        again.stderr
        == "penstock: recipe.yaml: exists already; choose another name, or pass --force to replace it [error: recipe_error]\n"
    )
    assert command("init", "chat.jsonl", "--tokenizer", tokenizer_path, "--force").returncode == 0
    for name in ("check", "prepare", "stats", "plan"):
        result = command(name, "recipe.yaml")
        assert result.returncode == 0, (name, result.stdout, result.stderr)


def test_init_without_a_tokenizer_leaves_a_variable(
    here: Any,
    write_jsonl: Write,
    tokenizer_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_jsonl(
        [{"instruction": words(row), "output": words(row + 3)} for row in range(50)], "tasks.jsonl"
    )
    code, out, _ = here("init", "tasks.jsonl", "-o", "my.yaml", "--json")
    found = json.loads(out)
    assert (
        code == 0
        and found["template"] == "alpaca"
        and found["is_estimate"]
        and found["num_rows"] == 50
    )
    assert 'penstock.load("my.yaml")' in (tmp_path / "my.yaml").read_text()
    code, _, err = here("plan", "my.yaml")
    assert (
        code == 3
        and "the environment variable TOKENIZER is not set; set it, or give a default" in err
    )
    _, out, _ = here("init", "tasks.jsonl", "-o", "again.yaml")
    assert out.endswith(
        "next: name a tokenizer in it, or set the variable TOKENIZER; then penstock check again.yaml\n"
    )
    monkeypatch.setenv("TOKENIZER", str(tokenizer_path))
    assert here("plan", "my.yaml", "--set", "num_proc=1")[0] == 0


def test_init_of_ids_and_of_nothing(here: Any, write_jsonl: Write) -> None:
    write_jsonl([{"input_ids": [1, 5, 77], "labels": [-100, 5, 77]}] * 4, "ids.jsonl")
    code, out, _ = here("init", "ids.jsonl", "-o", "ids.yaml", "--json")
    assert code == 0 and json.loads(out)["options"] == {"vocab_size": 78}
    assert here("check", "ids.yaml")[0] == 0
    write_jsonl([], "empty.jsonl")
    code, _, err = here("init", "empty.jsonl", "-o", "none.yaml")
    assert (
        code == 3
        and f"{Path('empty.jsonl').resolve()}: no records to sample; give data that has some" in err
    )
    code, _, err = here("init", "ids.jsonl", "-o", "no/such/folder/x.yaml")
    assert code == 3 and "its folder does not exist; create it first" in err


def test_init_says_which_rows_give_no_sample(
    here: Any, tokenizer_path: Path, tmp_path: Path
) -> None:
    lines = [json.dumps({"text": words(row)}) for row in range(20)]
    lines[7], lines[9] = "not json", '{"text": 7}'
    (tmp_path / "some.jsonl").write_text("\n".join(lines))
    code, out, err = here("init", "some.jsonl", "--tokenizer", tokenizer_path, "--template", "text")
    assert code == 0, err
    assert (
        f"1 of 20 sampled records cannot be read; fix them, or set on_bad: skip: {tmp_path}/some.jsonl:8:"
        in out
    )
    assert (
        f"1 of 20 sampled records give an error in the template: {tmp_path}/some.jsonl:10: key 'text' is int"
        in out
    )
    assert "1 of 20 sampled records cannot be read" in (tmp_path / "recipe.yaml").read_text()
    for name, line, why in (
        ("bad", "no json", "none of 3 sampled records can be read"),
        ("odd", lines[9], "3 of 3 sampled records"),
    ):
        (tmp_path / f"{name}.jsonl").write_text(f"{line}\n" * 3)
        code, _, err = here(
            "init",
            f"{name}.jsonl",
            "--tokenizer",
            tokenizer_path,
            "--template",
            "text",
            "-o",
            "n.yaml",
        )
        assert code == 3 and why in err and f"{name}.jsonl:1" in err
        assert not (tmp_path / "n.yaml").exists()


def test_init_is_told_the_template_where_looking_cannot_tell(
    here: Any, write_jsonl: Write, tokenizer_path: Path
) -> None:
    write_jsonl(
        [
            {"prompt": words(row), "completion": words(row + 1), "text": words(row)}
            for row in range(30)
        ],
        "both.jsonl",
    )
    code, _, err = here("init", "both.jsonl", "--tokenizer", tokenizer_path)
    assert (
        code == 3
        and "2 templates fit the 30 sampled records" in err
        and "name the one you mean" in err
    )
    code, out, err = here(
        "init",
        "both.jsonl",
        "--tokenizer",
        tokenizer_path,
        "--template",
        "text",
        "--set",
        "eos=false",
    )
    assert code == 0 and "template: text, as you asked" in out, err
    recipe = ps.Recipe.read("recipe.yaml")
    assert recipe.settings["template"] == "text" and recipe.settings["eos"] is False


def test_a_row_that_cannot_be_read_is_shown_with_the_reason(
    here: Any, tokenizer_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "the fox"}\nnot json\n')
    code, out, err = here(
        "show",
        "bad.jsonl",
        "--row",
        "1",
        "--tokenizer",
        tokenizer_path,
        "--set",
        "on_bad=skip",
        "--set",
        "num_proc=1",
    )
    assert code == 0 and f"{tmp_path}/bad.jsonl:2" in out and "dropped: bad_json" in out, err


def test_prepare_makes_all_stores_of_a_recipe(here: Any, recipe: Path) -> None:
    code, out, err = here("prepare", recipe)
    assert code == 0, err
    lines = out.splitlines()
    assert [line.split("  ")[1].split(":")[0] for line in lines] == [
        "talk",
        "prose",
        "held_out (eval)",
    ]
    assert f"{recipe}:9: sequence_len is read as max_length: 128" in err
    code, out, _ = here("prepare", recipe, "--json")
    found = json.loads(out)
    assert [(each["part"], each["data_set"], each["rows"]) for each in found] == [
        ("train", "talk", 120),
        ("train", "prose", 90),
        ("held_out", "held_out", 9),
    ]
    code, out, _ = here("cache", "why", recipe)
    assert code == 0 and out.count("this is a hit") == 3 and "talk\n" in out
    code, out, _ = here("cache", "why", recipe, "--set", "eos=false", "--json")
    assert [each["is_hit"] for each in json.loads(out)] == [True, False, False]
    code, _, err = here("prepare", recipe, "--name", "x")
    assert code == 2 and "--name is for data; a recipe names its own" in err


def test_the_stores_of_a_recipe_are_verified(here: Any, recipe: Path) -> None:
    code, _, err = here("verify", recipe)
    assert (
        code == 3
        and f"{recipe}: 'talk' is not prepared in " in err
        and f"run: penstock prepare {recipe}" in err
    )
    assert here("prepare", recipe)[0] == 0
    code, out, err = here("verify", recipe)
    assert code == 0 and out.count(": whole (") == 3, err


def test_stats_of_a_recipe(here: Any, recipe: Path) -> None:
    code, out, err = here(
        "stats", recipe, "--compare-length", "64", "--compare-packing", "none", "--world-size", "2"
    )
    assert code == 0, err
    assert re.search(r"^talk\t120\t120\t[\d,]+\t[\d,]+\t\d+\.\d%\t", out, flags=re.MULTILINE)
    assert (
        "tokens per sample" in out
        and "█" in out
        and "dropped when prepared: none of 210 records" in out
    )
    code, out, _ = here(
        "stats",
        recipe,
        "--compare-length",
        "64",
        "--compare-packing",
        "none",
        "--json",
        "--part",
        "held_out",
    )
    found = json.loads(out)
    assert [source["rows"] for source in found["sources"]] == [9]
    assert [(fit["max_length"], fit["packing"]) for fit in found["fits"]] == [
        (64, "mixed_fit"),
        (64, "none"),
        (128, "mixed_fit"),
        (128, "none"),
    ]
    assert sum(found["lengths"]["histogram"]["counts"]) == 9


def test_the_worst_step_of_a_plan_without_a_step_hides_nothing(here: Any, recipe: Path) -> None:
    """`--worst` ended with an error that no step is left; without it, the plan said to lower the batch size."""
    nothing = ("--set", "max_tokens=1")
    plain = here("plan", recipe, *nothing)
    assert plain[0] == 1
    assert "the run has no step: max_tokens=1 is less than its first step has" in plain[1]
    assert here("plan", recipe, *nothing, "--worst")[:2] == plain[:2]


def test_a_plan_is_the_loaders_and_a_state_fits_it_or_not(
    here: Any, recipe: Path, tmp_path: Path
) -> None:
    code, out, err = here("plan", recipe, "--world-size", "2", "--batch-size", "4", "--json")
    assert code == 0, err
    found = json.loads(out)
    options: dict[str, Any] = {
        "rank": 0,
        "world_size": 2,
        "batch_size": 4,
        "output": "numpy",
        "cache_dir": tmp_path / "cache",
    }
    loader = ps.load(recipe, **options)
    assert found["steps"] == len(loader) and found["plan"] == loader.plan.fingerprint
    assert {share["name"] for share in found["shares"]} == {"talk", "prose"}
    batches = iter(loader)
    next(batches)
    next(batches)
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"step": 2, "data": {"loader": loader.state_dict()}}))
    code, out, _ = here("plan", recipe, "--world-size", "4", "--compare", state)
    assert code == 0 and re.search(
        r"state.json: fits: continues at step 2 in epoch 0, [\d,]+ steps left", out
    )
    code, out, _ = here("plan", recipe, "--compare", state, "--set", "seed=3")
    assert (
        code == 1
        and "cannot resume: this run differs from the saved run" in out
        and "seed 0 → 3" in out
    )
    code, out, _ = here("plan", recipe, "--compare", state, "--set", "seed=3", "--json")
    assert code == 1 and json.loads(out)["state"]["fits"] is False
    (tmp_path / "other.json").write_text("[1]")
    for name, reason in (("other.json", "contains no saved state"), ("none.json", "No such file")):
        code, _, err = here("plan", recipe, "--compare", name)
        assert code == 3 and reason in err


def test_a_plan_without_a_step_says_why_and_fails(here: Any, recipe: Path) -> None:
    code, out, _ = here("plan", recipe, "--max-length", "2")
    assert code == 1
    assert (
        "0, each of up to 2 tokens, nothing to train on" in out
        and "100.00%" not in out
        and "full" not in out
    )
    assert re.search(
        r"the run has no step: of 210 samples none is left: 210 \(100.0%\) overlong; raise max_length, or choose",
        out,
    )
    code, out, _ = here("plan", recipe, "--max-length", "2", "--json")
    assert (
        code == 1
        and json.loads(out)["fill"] == 0
        and json.loads(out)["counters"]["samples_dropped"] == {"overlong": 210}
    )


def test_a_plan_shows_how_mixed_the_epoch_is(here: Any, recipe: Path) -> None:
    code, out, err = here("plan", recipe)
    assert code == 0, err
    assert "how mixed: shares of the samples in each tenth of the epoch" in out
    points = re.search(
        r"within sampling error \(with so few samples, as much as ([\d.]+) percentage points\)", out
    )
    assert points is not None and float(points[1]) > 10
    assert len(re.findall(r"^· records (\d+)–(\d+) %", out, re.MULTILINE)) == 10
    mixing = json.loads(here("plan", recipe, "--json")[1])["mixing"]
    assert [source["name"] for source in mixing["sources"]] == ["talk", "prose"] and mixing[
        "is_even"
    ]
    for tenth in range(10):
        assert sum(source["tenths"][tenth] for source in mixing["sources"]) == pytest.approx(1)
        for source in mixing["sources"]:
            assert sum(fifth[tenth] for fifth in source["fifths"]) == pytest.approx(1)
    code, out, _ = here("plan", recipe, "--set", "shuffle=false", "--set", "packing=none")
    assert code == 0 and re.search(
        r"differ by more than chance: fifth \d of source 'talk' is \d+\.\d% of tenth \d+", out
    )


def test_a_mixture_says_what_it_leaves_unused(here: Any, recipe: Path) -> None:
    path = recipe.with_name("mix.yaml")
    weighted = recipe.read_text().replace("template: messages}", "template: messages, weight: 0.5}")
    path.write_text(
        weighted.replace(
            "prose.jsonl, template: text}", "prose.jsonl, template: text, weight: 0.5}", 1
        )
    )
    code, out, err = here("plan", path)
    assert code == 0, err
    assert (
        "not used: 30 samples of talk (25.0% of them), because the epoch ends when prose is used up; stopping_strategy: all_exhausted"
        in out
    )
    shares = {
        share["name"]: share for share in json.loads(here("plan", path, "--json")[1])["shares"]
    }
    assert (shares["talk"]["unused"], shares["prose"]["unused"]) == (30, 0) and shares["talk"][
        "unused_share"
    ] == 0.25
    assert shares["talk"]["samples"] == shares["prose"]["samples"] == 90
    assert (
        shares["prose"]["times"] == shares["prose"]["times_in_run"] == 1.0 and "repeated" not in out
    )
    code, out, _ = here("plan", path, "--set", "stop=all")
    assert code == 0 and "not used" not in out


@pytest.mark.extra("view")
def test_a_mixture_that_goes_on_until_all_sources_are_used_up_says_how_often_each_sample_is_used(
    here: Any, recipe: Path, tmp_path: Path
) -> None:
    path = recipe.with_name("mix.yaml")
    text = recipe.read_text().replace("template: messages}", "template: messages, weight: 0.3}")
    path.write_text(
        text.replace("prose.jsonl, template: text}", "prose.jsonl, template: text, weight: 0.7}", 1)
    )
    options = ["--set", "stop=all", "--set", "epochs=3"]
    found = json.loads(here("plan", path, *options, "--json")[1])
    shares = {share["name"]: share for share in found["shares"]}
    used: Counter[str] = Counter()
    loader = ps.load(
        path,
        stopping_strategy="all_exhausted",
        epochs=3,
        output="numpy",
        cache_dir=tmp_path / "cache",
    )
    for batch in loader:
        used.update(loader.plan.sources[span["source"]].name for span in batch.rows.spans)
    assert shares["talk"]["times"] == 1.0 and found["stopping_strategy"] == "all_exhausted"
    assert shares["prose"]["times"] == -(-shares["talk"]["samples"] * 7 // 3) / 90 > 2
    assert {name: share["times_in_run"] for name, share in shares.items()} == {
        "talk": 3.0,
        "prose": used["prose"] / 90,
    }
    per_epoch, in_run = shares["prose"]["times"], used["prose"] / 90
    said = f"repeated: each sample of prose is used {per_epoch:.2f} times per epoch and {in_run:.2f} times in the run"
    assert said in here("plan", path, *options)[1]
    assert here("report", path, *options, "--output", tmp_path / "r.html")[0] == 0
    assert said in (tmp_path / "r.html").read_text()


def test_a_trace_names_the_lines_that_the_batch_holds(
    here: Any, recipe: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"batch_size": 1, "output": "numpy", "cache_dir": tmp_path / "cache"}
    ranks = [ps.load(recipe, rank=rank, world_size=2, **options) for rank in range(2)]
    batches = [list(rank) for rank in ranks]
    code, out, err = here(
        "trace", recipe, "--step", "3", "--world-size", "2", "--batch-size", "1", "--json"
    )
    assert code == 0, err
    rows = json.loads(out)["rows"]
    for rank in range(2):
        (row,) = [row for row in rows if row["rank"] == rank]
        assert [segment["where"] for segment in row["segments"]] == [
            str(where) for where, _, _ in batches[rank][3].provenance[0]
        ]
    code, out, _ = here(
        "trace", recipe, "--step", "3", "--world-size", "2", "--batch-size", "1", "--rank", "1"
    )
    assert (
        code == 0
        and out.startswith("step 3 of epoch 0, rank 1: 1 row; plan ")
        and "prose.jsonl:" in out + "prose.jsonl:"
    )
    fresh = ps.load(recipe, rank=0, world_size=1, **options)
    next(iter(fresh))
    (tmp_path / "state.json").write_text(json.dumps(fresh.state_dict()))
    code, out, _ = here(
        "trace",
        recipe,
        "--step",
        "1",
        "--world-size",
        "2",
        "--batch-size",
        "1",
        "--state",
        "state.json",
        "--json",
    )
    after = [segment["where"] for segment in json.loads(out)["rows"][0]["segments"]]
    assert after == [str(where) for where, _, _ in ranks[1].explain(0)[1]]
    code, _, err = here("trace", recipe, "--step", "9999")
    assert code == 3 and "step 9999 does not exist: the run has " in err


def test_show_walks_a_record_through_every_stage(
    here: Any, recipe: Path, tokenizer_path: Path
) -> None:
    assert here("prepare", recipe)[0] == 0
    code, out, err = here("show", recipe, "--row", "5", "--max-length", "256")
    assert code == 0, err
    for part in (
        "talk, record 5  ",
        "chat.jsonl:6",
        "record, as it is in the data",
        '"role": "user"',
        "<|im_start|>assistant",
        "tokens, ",
        "position in training",
    ):
        assert part in out
    assert f"⟦{words(6)}" in out, "the answer is marked as trained"
    assert out.count(words(6)) == 2, "once as data, once as tokens"
    assert re.search(
        r"epoch 0, step \d+, rank 0, row \d: tokens 0–\d+ of the sample at \d+–\d+ of the row", out
    )
    assert re.search(r"^[a-zA-Z]+·*$", out, flags=re.MULTILINE), "the packed row, drawn"
    code, out, _ = here("show", recipe, "--row", "-1", "--source", "prose", "--json")
    found = json.loads(out)
    assert found["sample"] == 89 and found["source"] == "prose" and found["rendered"] is None
    assert found["packed_row"]["step"] == found["landings"][0]["step"]
    assert any(
        segment["sample"] == 89 and segment["source"] == "prose"
        for segment in found["packed_row"]["segments"]
    )
    code, out, _ = here("show", recipe, "--step", "0")
    assert code == 0 and out.count("step 0, rank 0, row ") == 2
    code, out, _ = here("show", recipe, "--random", "--json")
    assert code == 0 and 0 <= json.loads(out)["sample"] < 120
    assert len(json.loads(here("show", recipe, "--step", "1", "--json")[1])) == 2
    code, _, err = here("show", recipe, "--row", "1", "--random")
    assert code == 2 and "give one of --record, --step and --random" in err
    code, _, err = here("show", recipe, "--source", "nobody")
    assert code == 2 and "unknown dataset 'nobody', expected one of talk, prose" in err
    code, _, err = here("show", recipe, "--row", "120")
    assert code == 3 and "record 120 does not exist: 'talk' has 120 records, counted from 0" in err


def test_check_finds_what_would_cost_money(
    here: Any, write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [{"text": words(row)} for row in range(60)]
    rows += [{"text": words(7)}] * 20 + [{"text": ""}] * 5 + [{"text": " ".join(WORDS * 60)}] * 3
    write_jsonl(rows, "odd.jsonl")
    arguments = (
        "check",
        "odd.jsonl",
        "--tokenizer",
        tokenizer_path,
        "--template",
        "text",
        "--max-length",
        "256",
        "--set",
        "num_proc=1",
        "--set",
        "max_dropped=1",
    )
    code, out, err = here(*arguments, "--json")
    assert code == 0, err
    ((found),) = json.loads(out)
    verdicts = {verdict["question"]: verdict for verdict in found["verdicts"]}
    assert {name: verdict["answer"] for name, verdict in verdicts.items()} == {
        "records": "ok",
        "bad records": "ok",
        "template": "ok",
        "chat template": "ok",
        "trained tokens": "ok",
        "BOS and EOS": "ok",
        "records without loss": "warn",
        "too long": "warn",
        "dropped": "ok",
        "model length": "ok",
        "text length": "warn",
        "duplicates": "warn",
        "disk": "ok",
    }
    assert (
        "5 of 88 records (5.7%) have no tokens to train on"
        in verdicts["records without loss"]["why"]
    )
    assert verdicts["records without loss"]["first"][0] == f"{tmp_path}/odd.jsonl:81"
    assert (
        "3 of 88 records (3.4%) are longer than max_length 256; they are dropped, with "
        in verdicts["too long"]["why"]
    )
    assert verdicts["duplicates"]["why"].startswith(
        "22 of 88 records (25.0%) repeat an earlier one"
    )
    assert not (tmp_path / "cache" / "stores").exists(), "nothing is prepared"
    code, out, _ = here(*arguments, "--set", "on_overlong=error")
    assert (
        code == 1
        and "fail too long             3 of 88 records (3.4%) are longer" in out
        and "1 failure, 3 warnings" in out
    )
    code, out, _ = here(*arguments, "--rows", "10", "-v")
    assert code == 0 and "88 records; 10 of them, spread over the data, were checked" in out


def test_check_finds_bad_rows_doubled_ends_and_records_of_another_shape(
    here: Any, tokenizer_path: Path, tmp_path: Path
) -> None:
    data = tmp_path / "bad.jsonl"
    data.write_text(
        '{"text": "the fox"}\nnot json\n{"text": "a dog<|endoftext|><|endoftext|>"}\n{"text": 7}\n'
    )
    arguments = ("check", data, "--tokenizer", tokenizer_path, "--template", "text", "--json")
    code, out, err = here(*arguments)
    assert code == 1, err
    verdicts = {verdict["question"]: verdict for verdict in json.loads(out)[0]["verdicts"]}
    assert verdicts["bad records"]["answer"] == "fail" and verdicts["bad records"]["first"] == [
        f"{data}:2"
    ]
    assert "set on_bad: skip" in verdicts["bad records"]["why"]
    assert (
        verdicts["template"]["answer"] == "fail"
        and "key 'text' is int, expected a string" in verdicts["template"]["why"]
    )
    assert (
        verdicts["BOS and EOS"]["answer"] == "warn"
        and "have two EOS" in verdicts["BOS and EOS"]["why"]
    )
    code, out, _ = here(*arguments, "--set", "on_bad=skip")
    verdicts = {verdict["question"]: verdict for verdict in json.loads(out)[0]["verdicts"]}
    assert (
        verdicts["bad records"]["answer"] == "warn"
        and "skipped and counted" in verdicts["bad records"]["why"]
    )
    (tmp_path / "empty.jsonl").write_text("")
    code, out, _ = here("check", "empty.jsonl", "--tokenizer", tokenizer_path)
    assert code == 1 and "fail records              there are no records" in out


def test_check_counts_every_row_that_does_not_fit(
    here: Any, write_jsonl: Write, tokenizer_path: Path
) -> None:
    write_jsonl([{"text": 7 if row % 3 == 0 else words(row)} for row in range(150)], "some.jsonl")
    arguments = ("--tokenizer", tokenizer_path, "--template", "text", "--json")
    _, out, _ = here("check", "some.jsonl", *arguments)
    verdicts = {verdict["question"]: verdict for verdict in json.loads(out)[0]["verdicts"]}
    assert verdicts["template"]["why"].startswith(
        "50 of 150 records (33.3%) give an error in the template"
    )
    assert verdicts["records"]["answer"] == "ok" and json.loads(out)[0]["estimated_tokens"] > 100
    write_jsonl([{"text": 7}] * 30, "none.jsonl")
    _, out, _ = here("check", "none.jsonl", *arguments)
    verdicts = {verdict["question"]: verdict for verdict in json.loads(out)[0]["verdicts"]}
    assert verdicts["template"]["why"].startswith("30 of 30 records (100.0%)")
    assert verdicts["records"]["why"] == "none of 30 sampled records gives a sample"
    assert {verdict["answer"] for verdict in verdicts.values()} == {
        "fail"
    }  # nothing else is well without a sample


def test_bench_measures_against_what_a_model_takes(here: Any, recipe: Path) -> None:
    code, out, err = here(
        "bench",
        recipe,
        "--seconds",
        "0.2",
        "--rows",
        "50",
        "--model-tokens-per-second",
        "1",
        "--json",
    )
    assert code == 0, err
    made, loaded = json.loads(out)
    assert (made["what"], loaded["what"]) == ("preparation", "loader")
    assert (
        made["tokens"] > 0
        and loaded["tokens_per_second"] > 0
        and loaded["headroom"] == loaded["tokens_per_second"]
    )
    code, out, _ = here(
        "bench", recipe, "--seconds", "0.1", "--rows", "10", "--model-tokens-per-second", "1e15"
    )
    assert code == 1 and "× what the model takes" in out


def test_empty_data_is_said_not_raised(here: Any, write_jsonl: Write, tokenizer_path: Path) -> None:
    write_jsonl([], "empty.jsonl")
    for arguments in (("stats",), ("plan",), ("show",), ("trace", "--step", "0"), ("bench",)):
        code, _, err = here(
            *arguments, "empty.jsonl", "--tokenizer", tokenizer_path, "--set", "num_proc=1"
        )
        assert code in (0, 1, 3) and "Traceback" not in err, (arguments, err)


def test_one_huge_row_is_shown_in_part(here: Any, write_jsonl: Write, tokenizer_path: Path) -> None:
    write_jsonl([{"text": " ".join(WORDS) * 3_000}, {"text": "the fox"}], "huge.jsonl")
    code, out, err = here(
        "show", "huge.jsonl", "--tokenizer", tokenizer_path, "--row", "0", "--set", "num_proc=1"
    )
    assert code == 0, err
    assert "more characters" in out and "more tokens" in out and len(out) < 40_000
    assert "dropped as too long: " in out


@pytest.mark.extra("formats")
def test_a_list_of_data_sets_is_data_and_a_recipe_is_not(
    here: Any, recipe: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "list.yaml").write_text(
        "datasets:\n  - path: prose.jsonl\n  - path: prose.jsonl@[:5]\n"
    )
    code, out, err = here(
        "plan", "list.yaml", "--tokenizer", tokenizer_path, "--set", "num_proc=1", "--json"
    )
    assert code == 0 and json.loads(out)["counters"]["samples_in"] == 95, err
    (tmp_path / "broken.yaml").write_text("data: [x\n")
    code, _, err = here("plan", "broken.yaml")
    assert code == 3 and re.match(r"penstock: broken.yaml:\d: not YAML: ", err)
    code, _, err = here("plan", "missing.yaml")
    assert code == 3 and "missing.yaml: cannot be read: No such file" in err
    code, _, err = here("plan", recipe, "--set", "max_lenght=3")
    assert code == 3 and "unknown key 'max_lenght'; did you mean 'max_length'?" in err


HALF_IMPORTED = """
import logging
import sys
import time
import types
from penstock.cli import screen
sys.modules["penstock.report.progress"] = types.ModuleType("penstock.report.progress")
with screen.library_log(logging.INFO):
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        time.sleep(0.05)
"""


def test_a_sign_of_life_comes_while_its_module_is_being_imported() -> None:
    """The timer may interrupt the import of report.progress: then the module is there, and its class is not."""
    output = on_a_terminal([sys.executable, "-c", HALF_IMPORTED], {**os.environ, "TERM": "xterm"})
    assert b"working" in output and b"Traceback" not in output, output


def test_nothing_in_data_steers_the_terminal(
    write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    write_jsonl(
        [{"text": f"the {HOSTILE} fox {row}\n\tdog"} for row in range(30)], f"a{HOSTILE}b.jsonl"
    )
    environment = {
        **os.environ,
        "PENSTOCK_CACHE": str(tmp_path / "cache"),
        "TERM": "xterm-256color",
    }
    name = str(tmp_path / f"a{HOSTILE}b.jsonl")
    common = ["--tokenizer", str(tokenizer_path), "--set", "num_proc=1"]
    for arguments in (
        ["init", name, "--tokenizer", str(tokenizer_path), "-o", str(tmp_path / "r.yaml")],
        ["check", name, *common],
        ["stats", name, *common],
        ["plan", name, *common],
        ["show", name, "--row", "3", *common],
        ["show", name, "--step", "0", *common],
        ["trace", name, "--step", "0", *common],
    ):
        output = on_a_terminal([sys.executable, "-m", "penstock", *arguments], environment)
        rest = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", output).replace(b"\r", b"").decode()
        steering = {
            char
            for char in rest
            if (ord(char) < 32 and char != "\n") or 127 <= ord(char) < 160 or char == "\u202e"
        }
        assert steering == set() and "Traceback" not in rest, (arguments, rest)
        if arguments[0] == "show":
            assert b"\x1b[" in output, "there are colours on a terminal"
    assert ps.load(
        tmp_path / "r.yaml", cache_dir=tmp_path / "cache", num_proc=1, output="numpy"
    ).batch_size


def on_a_terminal(command: list[str], environment: dict[str, str]) -> bytes:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, environment)
    output = b""
    while True:
        try:
            block = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not block:
            break
        output += block
    os.close(terminal)
    os.waitpid(pid, 0)
    return output


def test_help_is_quick_and_brings_nothing_along() -> None:
    probe = "import sys\nfrom penstock.cli.main import run\nrun(['--help'])\nsys.stderr.write(' '.join(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    found = {name.partition(".")[0] for name in result.stderr.split()}
    assert found.isdisjoint(
        {"numpy", "pyarrow", "torch", "tokenizers", "yaml", "rich", "orjson", "jinja2"}
    )
    for name in (
        "init",
        "check",
        "prepare",
        "show",
        "stats",
        "plan",
        "trace",
        "bench",
        "verify",
        "cache",
    ):
        assert re.search(rf"^  {name} ", result.stdout, flags=re.MULTILINE)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_completions(shell: str) -> None:
    environment = {**os.environ, "_PENSTOCK_COMPLETE": f"{shell}_source"}
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'penstock'; from penstock.cli.main import app; app()",
        ],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert result.returncode == 0 and "penstock" in result.stdout, result.stderr


@pytest.mark.extra("trainers")
def test_the_commands_say_what_a_pair_is(
    here: Any, write_jsonl: Write, tokenizer_path: Path, tmp_path: Path
) -> None:
    """Both sequences count for max_length, none is packed, and the last batch is shorter."""
    rows = [
        {"prompt": words(row), "chosen": f" {words(row + 1)}", "rejected": " no"}
        for row in range(10)
    ]
    data = write_jsonl(rows, "pairs.jsonl")
    path = tmp_path / "pairs.yaml"
    code, said, _ = here("init", data, "--tokenizer", tokenizer_path, "--output", path)
    assert code == 0 and "tokens per pair of sequences: median" in said
    path.write_text(re.sub("batch_size: .*", "batch_size: 4", path.read_text()))
    assert "(of each sequence of a pair)" in here("check", path, "-v")[1]
    store = ps.load(path).stores[0]
    lengths = " and ".join(map(str, store[0].columns["sequence_lengths"].tolist()))
    assert (
        f"{store.lengths[0]} tokens in sequences of {lengths}, "
        in here("show", path, "--row", "0")[1]
    )
    assert "2 of 4 rows, a shorter batch: no row is added (last_step: pad)" in here("plan", path)[1]
    compared = here("stats", path)[1].partition("packing compared")[2]
    assert "none" in compared and "best_fit" not in compared and "concat" not in compared


@pytest.mark.extra("formats")
def test_prepare_writes_every_data_set_for_megatron(tmp_path: Path, here: Any) -> None:
    rows = [[5, 6, 1], [7, 1]]
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"input_ids": row}) + "\n" for row in rows)
    )
    (tmp_path / "r.yaml").write_text(
        "data: {ids: {path: a.jsonl}}\neval: {held: {path: a.jsonl}}\n"
        "template: pretokenized\nvocab_size: 50\nmax_length: 8\n"
    )
    code, out, _ = here("prepare", "r.yaml", "--megatron", "m")
    assert code == 0 and "ids.bin and .idx: 2 sequences, 5 tokens" in out
    assert (
        read_megatron(tmp_path / "m" / "ids")[1]
        == rows
        == read_megatron(tmp_path / "m" / "held_eval")[1]
    )
    code, out, _ = here("prepare", "r.yaml", "--megatron", "m", "--json")
    assert code == 0 and [each["megatron"]["tokens"] for each in json.loads(out)] == [5, 5]


def test_plan_shows_the_epoch_of_plain_records(
    here: Any, write_jsonl: Write, tmp_path: Path
) -> None:
    """Q3: `penstock plan` refused plain records."""
    data = write_jsonl([{"n": n} for n in range(49)], "n.jsonl")
    recipe = tmp_path / "records.yaml"
    recipe.write_text(f"data: {data}\ntemplate: records\nbatch_size: 8\n")
    code, out, err = here("plan", recipe, "--world-size", "3")
    said = " ".join(out.split())
    assert code == 0, err
    assert "49, each a plain record" in said and "tokens" not in said
    assert "1 of 24 rows, no row is added: 2 ranks of 3 get an empty batch (last_step: pad)" in said
    code, out, err = here("plan", recipe, "--json")
    found = json.loads(out)
    assert (found["kind"], found["steps"], found["rows"]) == ("records", 7, 49)
