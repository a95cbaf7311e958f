"""`penstock init` chooses files, records, lengths and templates as a user would expect, and says what it chose."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

Write = Callable[..., Path]


def question(row: int) -> dict[str, Any]:
    return {"question": f"the fox {row}", "answer": f"a lazy dog and {row} runs"}


def text(words: int, row: int = 0) -> dict[str, Any]:
    return {"text": " ".join(["fox"] * (words - 1) + [str(row % 4)])}


def write(folder: Path, **files: int) -> None:
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        path = folder / name.replace("__", "/").replace("_jsonl", ".jsonl")
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(question(row)) + "\n" for row in range(rows)))


def verdicts(out: str, part: str = "train") -> dict[str, dict[str, Any]]:
    (found,) = [each for each in json.loads(out) if each["part"] == part]
    return {verdict["question"]: verdict for verdict in found["verdicts"]}


def test_test_and_dev_files_of_a_folder_become_eval_sets(
    here: Any, tokenizer_path: Path, tmp_path: Path
) -> None:
    write(tmp_path / "math", train_jsonl=30, test_jsonl=7, dev_jsonl=5, extra_jsonl=3)
    (tmp_path / "math" / "dev.tools.jsonl").write_text(json.dumps(question(1)) + "\n")
    code, out, err = here("init", "math", "--tokenizer", tokenizer_path)
    assert code == 0, err
    assert "train: jsonl, 30 records in 1 file (train.jsonl)" in out
    assert "eval set test: 7 records in 1 file (test.jsonl)" in out
    assert "eval set dev: 6 records in 2 files (dev.jsonl, dev.tools.jsonl)" in out
    assert "not used, because the name says neither train nor eval: extra.jsonl" in out
    recipe = ps.Recipe.read("recipe.yaml")
    assert recipe.parts == ("train", "dev", "test")
    assert [Path(data.path).name for data in recipe.part("train")] == ["train.jsonl"]
    assert here("check", "recipe.yaml")[0] == 0
    options: dict[str, Any] = {
        "output": "numpy",
        "cache_dir": tmp_path / "cache",
        "num_proc": 1,
        "rank": 0,
        "world_size": 1,
    }
    rows = {
        part: ps.load("recipe.yaml", part=part, **options).plan.count(0).samples_in
        for part in recipe.parts
    }
    assert rows == {"train": 30, "dev": 6, "test": 7}


def test_folders_named_after_splits_become_splits(
    here: Any, tokenizer_path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "set"
    write(folder, train__a_jsonl=4, train__b_jsonl=4, validation__a_jsonl=2)
    code, _, err = here("init", "set", "--tokenizer", tokenizer_path)
    assert code == 0, err
    recipe = ps.Recipe.read("recipe.yaml")
    assert recipe.parts == ("train", "validation")
    assert len(ps.open(recipe.data[0].path, cache_dir=tmp_path / "cache")) == 8


def test_a_folder_without_training_files_is_not_trained_on_silently(
    here: Any, tokenizer_path: Path, tmp_path: Path
) -> None:
    write(tmp_path / "held", dev_jsonl=4, test_jsonl=4)
    code, _, err = here("init", "held", "--tokenizer", tokenizer_path)
    assert (
        code == 3
        and "every file has the name of an evaluation set (dev: dev.jsonl; test: test.jsonl)" in err
    )
    assert (
        f"name the files: penstock init {tmp_path}/held/dev.jsonl" in err
        and not Path("recipe.yaml").exists()
    )
    code, out, _ = here("init", "held/dev.jsonl", "--tokenizer", tokenizer_path)
    assert (
        code == 0
        and "note: named like data for evaluation, but trained on: dev.jsonl (because you named it)"
        in out
    )


def test_test_files_behind_a_glob_or_in_one_of_several_folders_are_not_trained_on_silently(
    here: Any, tokenizer_path: Path, tmp_path: Path
) -> None:
    write(tmp_path / "set", train_jsonl=4, test_jsonl=4, latest_jsonl=1)
    write(tmp_path / "more", train__a_jsonl=4, dev__a_jsonl=4)
    for places, named in (
        (["set/*.jsonl"], "set/test.jsonl"),
        (["more/*/*.jsonl"], "more/dev/a.jsonl"),
        (["set", "more/**/*.jsonl"], "more/dev/a.jsonl"),
    ):
        code, out, err = here("init", *places, "--tokenizer", tokenizer_path, "--force")
        assert code == 0, err
        assert (
            f"note: named like data for evaluation, but trained on: {named} (init keeps such files apart"
            in out
        )
    for place in ("more/dev", "set/test.jsonl"):
        _, out, _ = here("init", place, "--tokenizer", tokenizer_path, "--force")
        assert (
            "named like data for evaluation, but trained on: " in out
            and "(because you named it)" in out
        )
    _, out, _ = here(
        "init", "more/train", "set/latest.jsonl", "--tokenizer", tokenizer_path, "--force"
    )
    assert "data for evaluation" not in out


def test_a_file_without_a_split_beside_test_files_is_the_training_data(
    here: Any, tokenizer_path: Path, tmp_path: Path
) -> None:
    write(tmp_path / "set", questions_jsonl=9, test_jsonl=2, latest_jsonl=1)
    code, out, _ = here("init", "set", "--tokenizer", tokenizer_path)
    assert (
        code == 0
        and "10 records in 2 files (latest.jsonl, questions.jsonl)" in out
        and "eval set test: 2 records" in out
    )


def test_max_length_keeps_trained_tokens_and_says_what_it_loses(
    here: Any, write_jsonl: Write, chat_tokenizer: Path
) -> None:
    rows = [{"prompt": "the fox", "completion": text(20, row)["text"]} for row in range(97)]
    rows += [{"prompt": "the fox", "completion": text(4000)["text"]}] * 3
    write_jsonl(rows, "long.jsonl")
    code, out, err = here("init", "long.jsonl", "--tokenizer", chat_tokenizer, "--json")
    found = json.loads(out)
    assert code == 0 and found["max_length"] == 2048 == found["model_max_length"], err
    assert (
        found["lost"]["samples"] == 3
        and found["lost"]["trained"] > 0.5 * found["lost"]["of_trained"]
    )
    code, out, _ = here("init", "long.jsonl", "--tokenizer", chat_tokenizer, "--force")
    assert "max_length 2,048: 3 of 100 samples (3.0%) are longer and will be dropped, with " in out
    assert "% of the trained tokens" in out
    code, out, _ = here("check", "recipe.yaml", "--json")
    assert (
        verdicts(out)["too long"]["answer"] == "warn"
        and "of the trained tokens" in verdicts(out)["too long"]["why"]
    )
    code, out, _ = here("check", "recipe.yaml", "--max-length", "4096", "--json")
    assert verdicts(out)["model length"]["answer"] == "warn"
    assert (
        "more than the tokenizer's model_max_length, 2,048" in verdicts(out)["model length"]["why"]
    )
    code, out, _ = here(
        "init",
        "long.jsonl",
        "--tokenizer",
        chat_tokenizer,
        "--force",
        "--set",
        "max_length=4096",
    )
    assert code == 0 and ps.Recipe.read("recipe.yaml").settings["max_length"] == 4096


def test_a_sentinel_for_no_limit_is_no_limit(
    here: Any, write_jsonl: Write, chat_tokenizer: Path
) -> None:
    config = chat_tokenizer / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_max_length": 10**30}))
    write_jsonl([text(50, row) for row in range(9)], "t.jsonl")
    code, out, err = here("init", "t.jsonl", "--tokenizer", chat_tokenizer, "--json")
    assert code == 0 and json.loads(out)["model_max_length"] is None, err


def test_text_is_packed_without_loss(here: Any, write_jsonl: Write, tokenizer_path: Path) -> None:
    write_jsonl([text(5000, row) for row in range(5)], "prose.jsonl")
    code, out, err = here("init", "prose.jsonl", "--tokenizer", tokenizer_path)
    assert (
        code == 0
        and "max_length 1,024, packing concat: texts are joined and cut into rows, nothing is lost"
        in out
    ), err
    assert ps.Recipe.read("recipe.yaml").settings["packing"] == "concat"


@pytest.mark.extra("view")  # which makes the report page
def test_a_sample_that_is_split_over_several_rows_is_not_called_dropped(
    here: Any, write_jsonl: Write, tokenizer_path: Path
) -> None:
    write_jsonl([text(5000, row) for row in range(5)], "prose.jsonl")
    for packing in ("concat", "best_fit"):
        options = [
            "--set",
            f"packing={packing}",
            "--set",
            "on_overlong=split",
            "--set",
            "max_length=1024",
        ]
        here("init", "prose.jsonl", "--tokenizer", tokenizer_path, *options, "--force")
        _, out, _ = here("plan", "recipe.yaml", "--set", "num_proc=1")
        assert re.search(r"dropped\s+none of 5 samples \(on_overlong: \w+\)", out)
        assert re.search(r"split\s+5 of 5 samples, over several rows", out)
        _, out, _ = here("stats", "recipe.yaml", "--set", "num_proc=1")
        assert (
            "per epoch: none of 5 samples" in out
            and "split when packed, per epoch: 5 of 5 samples" in out
        )
        here("report", "recipe.yaml", "--set", "num_proc=1")
        page = Path("report.html").read_text()
        assert "per epoch: none of 5 samples" in page
        assert "split when packed, per epoch: 5 of 5 samples, over several rows" in page


def test_questions_use_the_chat_template_where_there_is_one(
    here: Any, write_jsonl: Write, chat_tokenizer: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    write_jsonl([question(row) for row in range(30)], "qa.jsonl")
    common: dict[str, Any] = {"cache_dir": tmp_path / "cache", "num_proc": 1}
    chat = ps.prepare("qa.jsonl", tokenizer=chat_tokenizer, **common)
    assert (
        chat[0].text
        == "<|user|>the fox 0<|endoftext|><|assistant|>a lazy dog and 0 runs<|endoftext|>"
    )
    plain = ps.prepare("qa.jsonl", tokenizer=chat_tokenizer, chat=False, **common)
    assert (
        plain[0].text == "the fox 0\na lazy dog and 0 runs<|endoftext|>"
        and plain.fingerprint != chat.fingerprint
    )
    bare = ps.prepare("qa.jsonl", tokenizer=tokenizer_path, **common)
    assert bare[0].text == plain[0].text, "without a chat template it stays plain text"
    same = ps.prepare("qa.jsonl", tokenizer=chat_tokenizer, chat=True, **common)
    assert same.fingerprint == chat.fingerprint, "the default is what chat=True gives"
    for tokenizer, is_chat in ((chat_tokenizer, True), (tokenizer_path, False)):
        assert here("init", "qa.jsonl", "--tokenizer", tokenizer, "--force")[0] == 0
        assert ps.Recipe.read("recipe.yaml").settings["chat"] is is_chat
        _, out, _ = here("check", "recipe.yaml", "--json")
        assert verdicts(out)["chat template"]["why"].startswith(
            "used: " if is_chat else "not used: "
        )


def test_prompts_and_completions_stay_plain_text(
    here: Any, write_jsonl: Write, chat_tokenizer: Path, tmp_path: Path
) -> None:
    write_jsonl([{"prompt": "the fox ", "completion": "runs"}] * 9, "pc.jsonl")
    store = ps.prepare(
        "pc.jsonl", tokenizer=chat_tokenizer, cache_dir=tmp_path / "cache", num_proc=1
    )
    assert store[0].text == "the fox runs<|endoftext|>"
    assert here("init", "pc.jsonl", "--tokenizer", chat_tokenizer)[0] == 0
    assert ps.Recipe.read("recipe.yaml").settings["chat"] is False


def test_a_mixture_of_chat_and_plain_answers_is_a_warning(
    here: Any, write_jsonl: Write, chat_tokenizer: Path, tmp_path: Path
) -> None:
    write_jsonl([question(row) for row in range(30)], "qa.jsonl")
    write_jsonl(
        [{"instruction": f"run {row}", "output": "far away"} for row in range(30)], "alpaca.jsonl"
    )
    lines = (
        "data:\n  qa: {path: qa.jsonl, CHAT}\n  alpaca: {path: alpaca.jsonl}\n"
        + f"tokenizer: {chat_tokenizer}\nmax_length: 64\n"
    )
    for chat, answer in (
        ("chat: false", "warn"),
        ("chat: true", "ok"),
        ("template: query_response", "ok"),
    ):
        (tmp_path / "mix.yaml").write_text(lines.replace("CHAT", chat))
        _, out, _ = here("check", "mix.yaml", "--json")
        first, second = json.loads(out)
        found = [
            next(v for v in each["verdicts"] if v["question"] == "chat template")
            for each in (first, second)
        ]
        assert [each["answer"] for each in found] == [answer, "ok"], chat
        if answer == "warn":
            assert "but alpaca of the same mixture uses the chat template" in found[0]["why"]


def test_an_option_of_the_whole_recipe_does_not_rule_out_a_detected_template(
    here: Any, write_jsonl: Write, chat_tokenizer: Path, tmp_path: Path
) -> None:
    write_jsonl([question(row) for row in range(30)], "qa.jsonl")
    turns = [{"role": "user", "content": "run"}, {"role": "assistant", "content": "far away"}]
    write_jsonl([{"messages": turns}] * 30, "talk.jsonl")
    lines = f"data: {{qa: qa.jsonl, talk: talk.jsonl}}\ntokenizer: {chat_tokenizer}\nmax_length: 64\nchat: true\n"
    (tmp_path / "mix.yaml").write_text(lines)
    _, out, err = here("check", "mix.yaml", "--json")
    assert [each["source"] for each in json.loads(out)] == ["qa", "talk"], err


def test_an_option_for_plain_text_is_refused_with_the_chat_template(
    write_jsonl: Write, chat_tokenizer: Path
) -> None:
    path = write_jsonl([question(0)], "qa.jsonl")
    with pytest.raises(
        ValueError,
        match=r"no option separator; .*chat template; with chat=False \(plain text\) it has",
    ):
        ps.prepare(path, tokenizer=chat_tokenizer, separator="\n\n", num_proc=1)


def test_an_option_of_the_whole_recipe_reaches_the_data_sets_that_have_it(
    write_jsonl: Write, chat_tokenizer: Path, tmp_path: Path
) -> None:
    qa, prose = write_jsonl([question(0)], "qa.jsonl"), write_jsonl([text(5)], "prose.jsonl")
    data = {
        "qa": {"path": str(qa), "template": "query_response"},
        "prose": {"path": str(prose), "template": "text"},
    }
    loader = ps.load(
        ps.Recipe.of(data, tokenizer=str(chat_tokenizer), eos=False, max_length=64, batch_size=1),
        cache_dir=tmp_path / "cache",
        num_proc=1,
        output="numpy",
        rank=0,
        world_size=1,
    )
    texts = [store[0].text for store in loader.stores]
    assert texts[0].startswith("<|user|>") and not texts[1].endswith("<|endoftext|>")


PLAY = (
    "FOX:\nthe quick brown fox\njumps over\n\nDOG:\na lazy dog\nruns far away\nfrom home\n\n" * 40
)


@pytest.mark.parametrize(
    ("content", "record"),
    [
        (PLAY, "paragraph"),
        (PLAY.replace("\n", "\r\n"), "paragraph"),
        (
            "the quick brown fox jumps over a lazy dog and runs far away from home " * 20
            + "\n" * 1,
            "line",
        ),
        ("the fox\na dog\n" * 50, "line"),
    ],
)
def test_what_is_a_record_of_a_text_file_is_written_into_the_recipe(
    here: Any, tokenizer_path: Path, tmp_path: Path, content: str, record: str
) -> None:
    (tmp_path / "play.txt").write_bytes((content * 3).encode())
    code, out, err = here("init", "play.txt", "--tokenizer", tokenizer_path)
    assert (
        code == 0
        and f"one record per {record} (option record); median tokens per record: line " in out
    ), err
    assert ps.Recipe.read("recipe.yaml").settings["options"] == {"record": record}
    assert here("check", "recipe.yaml")[0] == 0


def test_short_text_files_are_one_record_each(
    here: Any, tokenizer_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "books").mkdir()
    for number in range(4):
        (tmp_path / "books" / f"{number}.txt").write_text(PLAY)
    assert here("init", "books", "--tokenizer", tokenizer_path)[0] == 0
    assert ps.Recipe.read("recipe.yaml").settings["options"] == {"record": "file"}


def test_options_of_the_source_can_be_given_to_every_command(
    here: Any, tokenizer_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "play.txt").write_text(PLAY)
    common = ("--tokenizer", tokenizer_path, "--set", "record=file", "--set", "eos=false")
    assert here("init", "play.txt", *common)[0] == 0
    recipe = ps.Recipe.read("recipe.yaml")
    assert recipe.settings["options"] == {"record": "file"} and recipe.settings["eos"] is False
    code, out, err = here("prepare", "play.txt", *common, "--json", "--num-proc", "1")
    assert code == 0 and json.loads(out)["rows"] == 1, err
    code, out, err = here("check", "recipe.yaml", "--set", "record=paragraph", "--json")
    assert code == 0 and json.loads(out)[0]["num_rows"] == 80, err
    _, out, _ = here("check", "recipe.yaml", "--set", "record=line", "--json")
    assert verdicts(out)["text length"]["answer"] == "warn"
    assert (
        "set options: {record: paragraph} or {record: file}" in verdicts(out)["text length"]["why"]
    )
    assert "EOS" not in verdicts(out)["text length"]["why"], "the recipe says eos: false"
    _, out, _ = here("check", "recipe.yaml", "--set", "record=line", "--set", "eos=true", "--json")
    assert "each ends with EOS" in verdicts(out)["text length"]["why"]


def test_several_folders_are_looked_through_as_one_folder_is(
    here: Any, tokenizer_path: Path
) -> None:
    for name in (
        "one/a/1",
        "one/b/2",
        "two/c/3",
        "set/train/4",
        "set/test/5",
        "more/train/6",
        "more/dev/7",
        "test/8",
    ):
        path = Path(f"{name}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"text": "a lazy dog"}\n' * 3)
    Path("empty/inside").mkdir(parents=True)

    def init(*places: str) -> tuple[Any, dict[str, Any]]:
        code, out, err = here("init", *places, "--tokenizer", tokenizer_path, "--force", "--json")
        assert code == 0, err
        files = {Path(file).name for file in json.loads(out)["files"]}
        sets = {
            each["name"]: {Path(file).name for file in each["files"]}
            for each in json.loads(out)["eval_sets"]
        }
        assert here("check", "recipe.yaml")[0] == 0
        return files, sets

    assert (
        init("one") == ({"1.jsonl", "2.jsonl"}, {})
        and "data: one/**" in Path("recipe.yaml").read_text()
    )
    assert init("one", "two") == ({"1.jsonl", "2.jsonl", "3.jsonl"}, {})
    assert init("set", "more") == (
        {"4.jsonl", "6.jsonl"},
        {"test": {"5.jsonl"}, "dev": {"7.jsonl"}},
    )
    assert init("one/a/1.jsonl", "two", "set") == (
        {"1.jsonl", "3.jsonl", "4.jsonl"},
        {"test": {"5.jsonl"}},
    )
    assert init("test", "two") == ({"8.jsonl", "3.jsonl"}, {})
    code, _, err = here("init", "one", "empty", "--tokenizer", tokenizer_path, "--force")
    assert code == 3 and "empty" in err and "nothing found" in err


def test_init_takes_a_key_of_another_tool_and_writes_each_key_once(
    here: Any, write_jsonl: Write, tokenizer_path: Path
) -> None:
    write_jsonl([question(row) for row in range(9)], "qa.jsonl")
    common = ("init", "qa.jsonl", "--tokenizer", tokenizer_path, "--force")
    code, _, err = here(*common, "--set", "cutoff_len=64")
    assert code == 0, err
    assert ps.Recipe.read("recipe.yaml").settings["max_length"] == 64
    code, _, err = here(*common, "--template", "query_response", "--set", "template=alpaca")
    assert code == 0, err
    assert ps.Recipe.read("recipe.yaml").settings["template"] == "query_response"
