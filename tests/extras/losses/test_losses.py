"""Losses are added up exactly, wherever a sample is packed, cut, resumed or trained; and they find the samples that stand out."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import PlanError
from tests.extras.trainers.conftest import QUIET, ROOT, make_folder, need, run_job

need_torch = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("torch"), reason="torch is not installed"
)
pytestmark = need_torch

SPLIT = {"packing": "concat"}
FORMS = {
    "packed": {},
    "one flat row": {"padding_free": True},
    "shifted labels": {"labels": "shifted"},
    "aligned": {"align": 8},
    "padded on the left": {"packing": "none", "pad_side": "left"},
    "one flat row of shifted labels": {
        "padding_free": True,
        "labels": "shifted",
        "pad_to_multiple_of": 32,
    },
}


@pytest.fixture
def folder(tmp_path: Path, tokenizer_path: Path) -> Path:
    return make_folder(tmp_path, tokenizer_path)


def record(loader: ps.Loader, model, steps: int | None = None) -> None:
    from penstock.trainers.losses import LossBySource

    losses = LossBySource(loader)
    for number, batch in enumerate(loader, start=1):
        losses.add(batch, logits=model(batch["input_ids"]))
        if number == steps:
            break
    losses.flush()


def open_run(folder: Path, **options) -> ps.Loader:
    from tests.extras.trainers.runs import open_loader

    return open_loader(folder, **{"run_id": "run", "epochs": 1, **options})


def read(folder: Path, run_id: str = "run"):
    from penstock.trainers.losses import read_losses

    return read_losses(run_id, cache_dir=folder / "cache")


def expect_exact(found, loader: ps.Loader, model, *, times: int = 1) -> None:
    """Compare the losses of every sample with those of the sample alone."""
    [store] = loader.stores
    trained = 0
    for sample in store:
        loss, targets = model.loss_of(sample)
        recorded = found.of_sample("data", sample.row)
        if not targets:
            assert recorded is None
            continue
        trained += 1
        assert recorded.times == times and recorded.targets == targets
        assert recorded.loss == pytest.approx(loss / targets, rel=1e-5)
        assert recorded.first_loss == pytest.approx(loss / targets, rel=1e-5)
    assert trained > 50
    losses, targets = zip(*map(model.loss_of, store), strict=True)
    total, count = found.totals()["data"]
    assert count == times * sum(targets) and total == pytest.approx(times * sum(losses), rel=1e-5)
    positions = found.by_position()["data"]
    assert sum(number for *_, number in positions) == count
    assert sum(mean * number for _, mean, number in positions) == pytest.approx(total)


@pytest.mark.parametrize("form", FORMS)
def test_the_loss_of_each_sample_is_that_of_the_sample_alone(folder, form):
    from .bigram import Bigram

    model = Bigram()
    loader = open_run(folder, **FORMS[form])
    record(loader, model)
    found = read(folder)
    expect_exact(found, loader, model)
    assert found.totals()["data"][1] == loader.metrics.as_dict()["trained_tokens"]
    assert found.num_missing == 0 and found.steps == (0, len(loader))


def test_tokens_of_the_samples_with_the_highest_losses_are_kept(folder):
    import torch

    from .bigram import Bigram

    model = Bigram()
    with torch.no_grad():
        model.table.weight.mul_(3)
    loader = open_run(folder)
    record(loader, model)
    found = read(folder)
    [store] = loader.stores
    kept = 0
    for sample in found.highest(10):
        tokens = found.tokens_of("data", sample.sample)
        if tokens:
            kept += 1
            whole = store[sample.sample]
            assert sorted(tokens) == list(range(1, len(whole)))
            assert sum(tokens.values()) == pytest.approx(model.loss_of(whole)[0], rel=1e-5)
    assert kept >= 8
    assert found.tokens_of("other", 0) == {}


def test_pieces_of_a_cut_sample_are_one_sample(folder):
    """The first token of a piece has no label, so a cut sample has one target less for each further piece."""
    from .bigram import Bigram

    model = Bigram()
    loader = open_run(folder, packing="concat", max_length=16, batch_size=8)
    record(loader, model)
    found = read(folder)
    assert found.totals()["data"][1] == loader.metrics.as_dict()["trained_tokens"]
    [store] = loader.stores
    longest = max(range(len(store)), key=lambda row: len(store[row]))
    assert len(store[longest]) > 16
    sample = found.of_sample("data", longest)
    assert len(sample.steps) == sample.times <= 3


def test_losses_per_token_are_taken_in_the_shape_of_labels_or_without_the_first_column(folder):
    import torch

    from penstock.trainers.losses import LossBySource

    from .bigram import Bigram

    model = Bigram()
    for name, first in (("whole", 0), ("next", 1)):
        loader = open_run(folder, run_id=name)
        losses = LossBySource(loader)
        for batch in loader:
            logits = model(batch["input_ids"])[:, :-1]
            labels = batch["labels"][:, 1:]
            per_token = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), labels, reduction="none"
            )
            whole = torch.nn.functional.pad(per_token, (1, 0))
            losses.add(batch, per_token=whole[:, first:])
        expect_exact(read(folder, name), loader, model)


def test_batches_of_a_dataloader_with_workers_are_recorded(folder):
    from torch.utils.data import DataLoader

    from penstock.trainers.losses import LossBySource

    from .bigram import Bigram

    model = Bigram()
    loader = open_run(folder)
    losses = LossBySource(loader)
    for batch in DataLoader(loader.as_dataset(), batch_size=None, num_workers=1):
        losses.add(batch, logits=model(batch["input_ids"]))
    losses.flush()
    expect_exact(read(folder), loader, model)


def test_what_a_resume_trains_again_counts_once(folder):
    from .bigram import Bigram

    model = Bigram()
    first = open_run(folder, epochs=2)
    record(first, model, steps=5)
    saved = first.state_dict()
    record(first, model, steps=4)  # these steps are lost with the job that made them
    second = open_run(folder, epochs=2, batch_size=3)
    second.load_state_dict(saved)
    record(second, model)
    found = read(folder)
    expect_exact(found, second, model, times=2)
    assert found.steps[0] == 0 and found.num_missing == 0


def test_a_step_back_in_one_process_counts_once(folder):
    from penstock.trainers.losses import LossBySource

    from .bigram import Bigram

    model = Bigram()
    loader = open_run(folder)
    losses = LossBySource(loader)
    for batch in loader:
        losses.add(batch, logits=model(batch["input_ids"]))
        if batch.step == 6:
            break
    loader.seek(3)
    for batch in loader:
        losses.add(batch, logits=model(batch["input_ids"]))
    expect_exact(read(folder), loader, model)


def launch(folder: Path, world: int, die_at: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(world):
        named = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank}
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = {**os.environ, **QUIET, **{name: str(n) for name, n in {**named, **where}.items()}}
        words = [sys.executable, "-m", "tests.extras.losses.job", str(folder), str(die_at)]
        ranks.append(subprocess.Popen(words, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True))
    errors = [rank.communicate()[1] for rank in ranks]
    expected = -9 if die_at else 0
    assert [rank.returncode for rank in ranks] == [expected] * world, errors


def test_two_ranks_that_are_killed_and_resumed_as_one_add_up_exactly(folder):
    from .bigram import Bigram

    launch(folder, world=2, die_at=6)
    assert json.loads((folder / "state.json").read_text())["step"] == 4
    half_way = read(folder, "gloo")
    assert half_way.steps == (0, 6)
    launch(folder, world=1, die_at=0)
    found = read(folder, "gloo")
    loader = open_run(folder, epochs=2)
    expect_exact(found, loader, Bigram(), times=2)
    assert found.num_missing == 0


@pytest.fixture(scope="module")
def trainings(tmp_path_factory, tokenizer_path):
    need("transformers", "accelerate", "trl", "datasets")
    folder = make_folder(tmp_path_factory.mktemp("losses"), tokenizer_path)
    run_job("-m", "tests.extras.losses.trainings", folder)
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("name", ["hf", "trl", "resumed"])
def test_recorded_losses_are_those_that_the_trainer_logs(trainings, name):
    found = trainings[name]
    assert len(found["logged"]) == 12
    assert found["recorded"] == pytest.approx(found["logged"], rel=2e-3)  # logged with 4 digits
    assert found["missing"] == 0
    assert name == "resumed" or found["targets"] == found["trained"]


def test_a_model_whose_outputs_have_no_logits_is_refused(trainings):
    assert "have neither logits nor log_probs" in trainings["no logits"]


# What they are for


def train_on_noise(folder: Path, num_samples: int, epochs: int):
    """Return (rows with a shuffled answer, the losses of a training)."""
    import torch

    from penstock.trainers.losses import LossBySource

    from .noisy import make_data, make_model, open_store

    shuffled = make_data(folder, num_samples, share=0.02)
    store = open_store(folder)
    loader = ps.Loader(
        {"letters": store}, batch_size=4, max_length=64, epochs=epochs, run_id="noise"
    )
    losses = LossBySource(loader)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for batch in loader:
        names = ("input_ids", "position_ids", "labels")
        outputs = model(**{name: batch[name] for name in names}, use_cache=False)
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.add(batch, logits=outputs.logits)
    return shuffled, read(folder, "noise")


def expect_found(folder: Path, num_samples: int, epochs: int) -> None:
    shuffled, found = train_on_noise(folder, num_samples, epochs)
    highest = found.highest(len(shuffled))
    precision = sum(sample.sample in shuffled for sample in highest) / len(shuffled)
    assert len(shuffled) == round(0.02 * num_samples) and precision >= 0.9


def test_shuffled_answers_have_the_highest_losses(tmp_path):
    need("transformers")
    expect_found(tmp_path, 1_000, 3)


@pytest.mark.soak
@pytest.mark.parametrize("num_samples, epochs", [(5_000, 2), (20_000, 1)])
def test_shuffled_answers_are_found_among_many(tmp_path, num_samples, epochs):
    need("transformers")
    expect_found(tmp_path, num_samples, epochs)


def test_a_sample_that_is_learned_by_heart_falls_fastest(folder):
    """Its loss is lower each time, and that of the others stays."""
    import torch

    from penstock.trainers.losses import LossBySource

    loader = open_run(folder, epochs=3)
    losses = LossBySource(loader)
    for batch in loader:
        per_token = torch.full(batch["labels"].shape, 2.0)
        for number, row in enumerate(batch.rows[row] for row in range(batch.rows.num_rows)):
            place = 0
            for _, sample, start, stop in row.tolist():
                if sample == 40:
                    per_token[number, place : place + stop - start] = (
                        3.0 - loader.run.cursor.position.epoch
                    )
                place += stop - start
        losses.add(batch, per_token=per_token)
    found = read(folder)
    [fastest] = found.fastest_falling(1)
    assert fastest.sample == 40 and fastest.first_loss == 3.0 and fastest.loss <= 2.0


def test_left_out_samples_have_no_label_and_everything_else_stays(folder):
    import torch

    from penstock.loader.collate import IGNORE
    from penstock.trainers.losses import leave_out

    from .bigram import Bigram

    record(open_run(folder), Bigram())
    chosen = read(folder).highest(5)
    rows = set(chosen.by_source["data"])
    loader = open_run(folder)
    counted = leave_out(loader, chosen)
    removed = 0
    for batch, plain in zip(loader, open_run(folder), strict=True):
        assert torch.equal(batch["input_ids"], plain["input_ids"])
        differs = batch["labels"] != plain["labels"]
        for number in range(batch.rows.num_rows):
            place = 0
            for _, sample, start, stop in batch.rows[number].tolist():
                piece = slice(place, place + stop - start)
                if sample in rows:
                    assert (batch["labels"][number, piece] == IGNORE).all()
                    removed += int(differs[number, piece].sum())
                else:
                    assert not differs[number, piece].any()
                place += stop - start
        assert batch.trained == plain.trained - int(differs.sum())
    [store] = loader.stores
    assert removed == sum(len(store[row]) - 1 for row in rows) > 0
    assert counted.num_samples == 5 and counted.num_tokens == sum(len(store[row]) for row in rows)


CUTS = {
    "future labels": {"future_labels": 2},
    "a part of rows": {"context_split": "zigzag"},
    "a part of documents": {"context_split": "zigzag", "context_unit": "document", "align": 4},
    "future labels of a part": {"context_split": "striped", "future_labels": 2},
}


@pytest.mark.parametrize("cut", CUTS)
def test_left_out_samples_have_no_future_label_and_parts_of_rows_leave_the_same_labels_out(
    folder, cut
):
    import numpy as np

    from penstock.extras.trainers.context import gather
    from penstock.loader.collate import IGNORE
    from penstock.trainers.losses import leave_out

    rows = list(range(0, 90, 2))
    whole = {"labels": "shifted", "pad_to_multiple_of": 4, "output": "numpy", "rank": 0}
    whole |= {"world_size": 1, "align": CUTS[cut].get("align", 1)}
    plain = open_run(folder, **whole)
    leave_out(plain, {"data": rows})
    ranks = (0, 1) if "context_split" in CUTS[cut] else (None,)
    parts = []
    for rank in ranks:
        of_rank = {} if rank is None else {"context_size": 2, "context_rank": rank}
        part = open_run(folder, **{**whole, **CUTS[cut], **of_rank})
        leave_out(part, {"data": rows})
        parts.append(part)
    for expected, *batches in zip(plain, *parts, strict=True):
        joined = dict(batches[0])
        if "row_places" in joined:
            places = [batch["row_places"] for batch in batches]
            joined["labels"] = gather([batch["labels"] for batch in batches], places)
            joined["seq_idx"] = gather([batch["seq_idx"] for batch in batches], places)
            assert joined["total_targets"] == np.count_nonzero(joined["labels"] != IGNORE)
            if "future_labels" in joined:
                further = [
                    gather([batch["future_labels"][:, depth] for batch in batches], places)
                    for depth in range(2)
                ]
                joined["future_labels"] = np.stack(further, axis=1)
        assert np.array_equal(joined["labels"], expected["labels"])
        if "future_labels" in joined:
            same = joined["seq_idx"][:, 1:] == joined["seq_idx"][:, :-1]
            first = joined["future_labels"][:, 0, :-1]
            assert np.array_equal(first, np.where(same, joined["labels"][:, 1:], IGNORE))


def test_losses_and_leave_out_refuse_labels_that_are_not_the_next_tokens_of_their_rows(tmp_path):
    from tokenizers import AddedToken, Tokenizer, models

    from penstock.trainers.losses import LossBySource, leave_out

    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    names = ["<mask>", *(f"<extra_id_{number}>" for number in range(9))]
    words.add_special_tokens([AddedToken(name) for name in names])
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n' * 9)
    store = ps.prepare(
        tmp_path / "data.jsonl",
        tokenizer=tmp_path / "tokenizer.json",
        template="text",
        cache_dir=tmp_path / "cache",
    )
    corruption = {"name": "span_corruption", "layout": "encoder_decoder"}
    for objective in ("masked_diffusion", corruption):
        loader = ps.Loader(
            store, batch_size=2, max_length=64, packing="none", objective=objective, run_id="run"
        )
        with pytest.raises(PlanError, match="LossBySource is for labels that are the next tokens"):
            LossBySource(loader)
        with pytest.raises(PlanError, match="leave_out is for labels that are the next tokens"):
            leave_out(loader, {"data": [1]})


def test_losses_of_parts_of_rows_are_refused(folder):
    import torch

    from penstock.trainers.losses import LossBySource

    cut = {"context_split": "zigzag", "context_size": 2, "context_rank": 0}
    loader = open_run(
        folder, **cut, labels="shifted", pad_to_multiple_of=4, rank=0, world_size=1, packing="none"
    )
    losses = LossBySource(loader)
    batch = next(iter(loader))
    with pytest.raises(PlanError, match="context_split gives each rank a part of them"):
        losses.add(batch, logits=torch.zeros(*batch["labels"].shape, 400))


def test_rows_one_by_one_with_left_out_samples_are_refused(folder):
    from penstock.trainers.losses import leave_out

    loader = open_run(folder)
    leave_out(loader, {"data": [1]})
    dataset, sampler = loader.as_map_dataset()
    with pytest.raises(PlanError, match="as_map_dataset makes rows one by one, and a stage was"):
        dataset[next(iter(sampler))]


def test_steps_of_samples_can_be_skipped(folder):
    from .bigram import Bigram

    record(open_run(folder), Bigram())
    [worst] = read(folder).highest(1)
    loader = open_run(folder, run_id="again", skip_steps=read(folder).highest(1).steps)
    seen = {int(sample) for batch in loader for sample in batch.rows.spans["sample"]}
    assert worst.sample not in seen and len(worst.steps) == 1
    record(open_run(folder, run_id="third", skip_steps=worst.steps), Bigram())
    assert read(folder, "third").num_missing == (0 < worst.steps[0] < len(loader) - 1)


def test_what_cannot_be_recorded_is_refused(folder):
    import torch

    from penstock.trainers.losses import LossBySource, leave_out, read_losses

    with pytest.raises(PlanError, match="give the Loader run_id="):
        LossBySource(open_run(folder, run_id=None))
    with pytest.raises(PlanError, match="set output='torch'"):
        LossBySource(open_run(folder, output="numpy"))
    with pytest.raises(PlanError, match="no losses of run 'other'"):
        read_losses("other", cache_dir=folder / "cache")
    with pytest.raises(PlanError, match="has no source 'chat', expected one of data"):
        leave_out(open_run(folder), {"chat": [1]})
    with pytest.raises(PlanError, match="sample 90 of 'data' does not exist: it has 90"):
        leave_out(open_run(folder), {"data": [90]})
    loader = open_run(folder)
    losses = LossBySource(loader)
    batch = next(iter(loader))
    width = batch["labels"].shape[1]
    with pytest.raises(PlanError, match=f"expected .2, {width}, 'vocabulary'."):
        losses.add(batch, logits=torch.zeros(2, width - 1, 400))
    with pytest.raises(
        PlanError, match=rf"expected that of the labels, .2, {width}. or .2, {width - 1}."
    ):
        losses.add(batch, per_token=torch.zeros(2, 3))
    with pytest.raises(PlanError, match="either logits= or per_token="):
        losses.add(batch)
    batch["labels"] = batch["labels"][:, 5:]
    with pytest.raises(PlanError, match="as the Loader delivered it"):
        losses.add(batch, logits=torch.zeros(2, width - 5, 400))


def test_a_damaged_file_is_named(folder):
    from .bigram import Bigram

    record(open_run(folder), Bigram())
    [path] = (folder / "cache" / "runs" / "run" / "losses").glob("*.pieces.arrow")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(
        PlanError, match=r"pieces\.arrow: not the losses of a run: .*; remove the file"
    ):
        read(folder)
