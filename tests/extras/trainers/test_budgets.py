"""Budgets and the worst step in trainers: a run ends where its budget does, also after a resume, and a dry run leaves no trace."""

import json
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import PlanError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from .models import llama  # noqa: E402

BUDGETS: dict[str, dict[str, Any]] = {
    "steps": {"max_steps": 7},
    "tokens": {"max_tokens": 400, "epochs": None},
    "part": {"epochs": 0.6},
    "tokens of a step": {"packing": "none", "batch_size": 16, "tokens_per_step": 90, "epochs": 0.5},
}


def open_loader(folder: Path, **options: Any) -> ps.Loader:
    records = [
        {"input_ids": [1 + (7 * number + place) % 300 for place in range(3 + number % 17)]}
        for number in range(60)
    ]
    store = ps.prepare(
        records,
        template="pretokenized",
        vocab_size=400,
        cache_dir=folder / "cache",
        num_proc=1,
        progress="none",
    )
    return ps.Loader(store, **{"batch_size": 2, "max_length": 32, "seed": 5, **options})


def train(folder: Path, *, resume: str | bool = False, accumulate: int = 1, **options: Any) -> Any:
    from transformers import TrainingArguments

    from penstock.trainers.hf_trainer import LoaderTrainer

    worst_step_first = options.pop("worst_step_first", False)
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        save_steps=2,
        disable_tqdm=True,
        gradient_accumulation_steps=accumulate,
    )
    torch.manual_seed(1)
    trainer = LoaderTrainer(
        model=llama(dropout=0.1),
        args=arguments,
        loader=open_loader(folder, **options),
        worst_step_first=worst_step_first,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def lines(trainer: Any) -> list[tuple[int, float, float, float]]:
    return [
        (line["step"], line["loss"], line["epoch"], line["data/tokens"])
        for line in trainer.state.log_history
        if "loss" in line
    ]


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("name", BUDGETS)
def test_a_trainer_ends_with_the_budget_also_after_a_resume(
    tmp_path: Path, name: str, accumulate: int
) -> None:
    budget = BUDGETS[name]
    whole = train(tmp_path, accumulate=accumulate, **budget)
    loader = open_loader(tmp_path, **budget)
    batches = list(loader)
    assert whole.state.global_step == -(-len(batches) // accumulate)
    spans = [batch.rows.spans for batch in batches]
    tokens = sum(int((each["stop"] - each["start"]).sum()) for each in spans)
    assert sum(line[3] for line in lines(whole)) == tokens
    assert tokens <= budget.get("max_tokens", tokens)
    if budget.get("epochs"):
        assert whole.state.epoch == pytest.approx(budget["epochs"])
    else:
        assert 0 < whole.state.epoch < 5
    resumed = train(
        tmp_path, accumulate=accumulate, resume=str(tmp_path / "out" / "checkpoint-2"), **budget
    )
    assert lines(resumed) == lines(whole)


def test_the_worst_step_first_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"packing": "none", "batch_size": 4, "epochs": 1}
    plain = train(tmp_path, **options)
    with caplog.at_level("INFO", "penstock"):
        dry = train(tmp_path, worst_step_first=True, **options)
    worst = open_loader(tmp_path, **options).worst_step()
    said = [text for text in caplog.messages if text.startswith("worst_step_first: ")]
    assert [int(text.split()[2].rstrip(",")) for text in said] == list(worst.steps)
    assert "input_ids (4, 19)" in said[0]
    assert lines(dry) == lines(plain)
    for before, after in zip(plain.model.parameters(), dry.model.parameters(), strict=True):
        assert torch.equal(before, after)


def test_an_evaluation_has_no_budget(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    from penstock.trainers.hf_trainer import LoaderTrainer

    with pytest.raises(PlanError, match="max_steps=3 ends this Loader before all samples are seen"):
        LoaderTrainer(
            model=llama(),
            args=TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[]),
            loader=open_loader(tmp_path),
            eval_dataset=open_loader(tmp_path, max_steps=3),
        )


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_pairs_fill_steps_of_tokens_on_every_rank(
    tmp_path: Path, tokenizer_path: Path, ranks: int
) -> None:
    words = ["fox", "dog", "runs", "over"]
    records = [
        {
            "prompt": "the fox ",
            "chosen": " ".join(words[: 1 + number % 4] * (1 + number % 3)),
            "rejected": " ".join(words[: 1 + number % 3] * (1 + number % 4)),
        }
        for number in range(50)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    store = ps.prepare(
        tmp_path / "pairs.jsonl",
        tokenizer=tokenizer_path,
        template="preference",
        cache_dir=tmp_path / "cache",
        num_proc=1,
        progress="none",
    )
    options = {"batch_size": 16, "max_length": 48, "tokens_per_step": 400, "last_step": "drop"}
    loaders = [ps.Loader(store, **options, rank=rank, world_size=ranks) for rank in range(ranks)]
    of_ranks = [list(loader) for loader in loaders]
    assert {len(batches) for batches in of_ranks} == {len(loaders[0])}
    for batches in zip(*of_ranks, strict=True):
        assert sum(batch["input_ids"].numel() for batch in batches) <= 400
        assert len({len(batch["input_ids"]) for batch in batches}) == 1
    seen = [
        sample
        for batches in of_ranks
        for batch in batches
        for sample in batch.rows.spans["sample"].tolist()
    ]
    assert len(seen) == len(set(seen)) == len(store) // ranks * ranks
    worst = loaders[0].worst_step()
    sizes = [loader.make_batch(worst.tokens.step)["input_ids"].numel() for loader in loaders]
    assert worst.tokens.amount == sizes[worst.tokens.rank]
