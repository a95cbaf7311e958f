"""Numbers about the data in the logs of trainers, read from TensorBoard's event files, against the plan's own rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

from .event_files import scalars

torch = pytest.importorskip("torch")
pytest.importorskip("tensorboardX")

EVERY = 2  # steps of the optimizer
ACCUMULATED = 2
NAMES = {
    *("data/tokens", "data/trained_tokens", "data/samples", "data/fill", "data/epoch"),
    *("data/wait_seconds", "data/share/short", "data/share/long"),
    *("perf/global_seq_len_avg", "perf/global_seq_len_min", "perf/global_seq_len_max"),
}


def open_loader(folder: Path, **options: Any) -> ps.Loader:
    stores = {}
    for name, length in (("short", 3), ("long", 20)):
        records = [{"input_ids": list(range(1, length + number % 3))} for number in range(24)]
        stores[name] = ps.prepare(
            records,
            template="pretokenized",
            vocab_size=40,
            cache_dir=folder / "cache",
            num_proc=1,
            progress="none",
        )
    given = {"batch_size": 2, "max_length": 32, "epochs": 2, "packing": "best_fit", **options}
    return ps.Loader({"short": (stores["short"], 0.3), "long": (stores["long"], 0.7)}, **given)


def expected_lines(folder: Path, steps_per_line: int) -> list[dict[str, float]]:
    """Add up the rows of the plan, in plain Python."""
    loader = open_loader(folder)
    lines = []
    for first in range(0, len(loader) - steps_per_line + 1, steps_per_line):
        tokens = {0: 0, 1: 0}
        per_step, trained = [], 0
        for number in range(first, first + steps_per_line):
            spans = loader.look_up(number).rows.spans
            sizes = (spans["stop"] - spans["start"]).tolist()
            for source, size in zip(spans["source"].tolist(), sizes, strict=True):
                tokens[source] += size
                trained += size - 1
            per_step.append(sum(sizes))
        total = sum(per_step)
        lines.append(
            {
                "data/tokens": total,
                "data/trained_tokens": trained,
                "data/fill": total / (steps_per_line * 2 * 32),
                "data/share/short": tokens[0] / total,
                "data/share/long": tokens[1] / total,
                "data/epoch": 2 * (first + steps_per_line) / len(loader),
                "perf/global_seq_len_avg": float(np.mean(per_step)),
                "perf/global_seq_len_min": min(per_step),
                "perf/global_seq_len_max": max(per_step),
            }
        )
    return lines


def check(found: dict[str, dict[int, float]], prefix: str, lines: list[Any], steps: Any) -> None:
    assert {name for name in found if "data/" in name or "perf/" in name} == {
        prefix + name for name in NAMES
    }
    for number, line in enumerate(lines):
        for name, value in line.items():
            assert found[prefix + name][steps(number)] == pytest.approx(value, rel=1e-5), name
    assert all(value >= 0 for value in found[f"{prefix}data/wait_seconds"].values())


# trl's own SFTConfig sets it by its former name
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", ["hugging face", "trl"])
def test_the_trainers_of_transformers_and_trl_log_the_data(
    kind: str, tmp_path: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedTokenizerFast, TrainingArguments
    from trl import SFTConfig

    from penstock.extras.trainers.hf_trainer import LoaderTrainer
    from penstock.extras.trainers.trl import LoaderSFTTrainer

    from .runs import make_model

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    common: dict[str, Any] = {
        "output_dir": str(tmp_path / "out"),
        "use_cpu": True,
        "report_to": ["tensorboard"],
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": EVERY,
        "gradient_accumulation_steps": ACCUMULATED,
    }
    loader = open_loader(tmp_path)
    if kind == "trl":
        end = "<|endoftext|>"
        file = str(tokenizer_path / "tokenizer.json")
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, eos_token=end, pad_token=end)
        trainer: Any = LoaderSFTTrainer(
            model=make_model(),
            args=SFTConfig(**common, bf16=False),
            processing_class=tokenizer,
            loader=loader,
        )
    else:
        trainer = LoaderTrainer(model=make_model(), args=TrainingArguments(**common), loader=loader)
    trainer.train()
    lines = expected_lines(tmp_path, EVERY * ACCUMULATED)
    assert len(lines) > 1
    found = scalars(tmp_path / "events")
    check(found, "train/", lines, lambda number: (number + 1) * EVERY)
    assert "train/loss" in found


# of Lightning: the model of other tests has a validation_step; and few CPUs
@pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.*:FutureWarning")
def test_lightning_logs_the_data(tmp_path: Path) -> None:
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import TensorBoardLogger

    from penstock.trainers.lightning import LoaderModule

    from .launched_model import Model

    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=TensorBoardLogger(tmp_path / "events"),
        log_every_n_steps=EVERY,
        accumulate_grad_batches=ACCUMULATED,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    module = LoaderModule(open_loader(tmp_path), isolation_check=False)
    trainer.fit(Model(tmp_path, "fit"), datamodule=module)
    lines = expected_lines(tmp_path, EVERY * ACCUMULATED)
    found = scalars(tmp_path / "events")
    check(found, "", lines, lambda number: (number + 1) * EVERY - 1)


def test_a_loop_of_one_s_own_takes_them_and_evaluations_do_not_count(tmp_path: Path) -> None:
    from penstock.trainers.data_log import DataLog

    loader = open_loader(tmp_path)
    log = DataLog(loader)
    assert log.take() == {}
    lines = []
    for number, _ in enumerate(loader, start=1):
        if number % 3 == 0:
            lines.append(log.take())
    expected = expected_lines(tmp_path, 3)
    assert len(lines) == len(expected)
    for line, numbers in zip(lines, expected, strict=True):
        assert line.keys() == NAMES
        assert line == line | {name: pytest.approx(value) for name, value in numbers.items()}


def test_plain_records_have_no_tokens() -> None:
    from penstock.trainers.data_log import DataLog

    loader = ps.Loader(ps.open([{"a": number} for number in range(6)]), batch_size=2, collate=list)
    log = DataLog(loader)
    assert len(list(loader)) == 3
    line = log.take()
    assert line.keys() == {"data/epoch", "data/wait_seconds", "data/records"}
    assert line["data/records"] == 6
