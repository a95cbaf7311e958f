"""Real trainers: the isolation check at the start, every evaluation from its first batch, and counts of what was trained."""

import json
from pathlib import Path

import pytest

from .conftest import make_folder, need, run_job
from .runs import open_loader


@pytest.fixture(scope="module")
def home(tmp_path_factory, tokenizer_path):
    need("transformers", "trl", "lightning", "accelerate")
    folder = make_folder(tmp_path_factory.mktemp("starts"), tokenizer_path)
    run_job("-m", "tests.extras.trainers.starts", folder)
    return folder


@pytest.fixture(scope="module")
def found(home):
    return json.loads((home / "found.json").read_text())


def test_losses_and_chance_are_the_same_with_and_without_the_isolation_check(found):
    for checked, unchecked in found["isolation"]["same"]:
        assert checked == unchecked and len(checked[0]) == 4


def test_trainers_refuse_models_that_mix_packed_samples_up(found):
    said = found["isolation"]
    assert "GptOssForCausalLM (attn_implementation='eager') does not keep" in said["gpt_oss"]
    assert "set attention_mask='4d' in the Loader, which keeps them apart" in said["gpt_oss"]
    assert said["gpt_oss, 4d"] == said["4d and eager"] == ""
    assert said["unchecked"] == 4
    for name in ("alibi", "trl", "evaluation"):
        assert "BloomForCausalLM" in said[name] and "set packing='none' in the Loader" in said[name]
    assert said["alibi, unpacked"] == said["gpt2"] == ""


def test_a_vision_language_model_on_text_needs_use_cache_in_the_batch(found):
    assert found["isolation"]["vision"] == ""
    assert (
        "With a cache, transformers ignores where positions restart"
        in found["isolation"]["vision with a cache"]
    )


def test_loops_of_lightning_and_accelerate_are_checked_at_the_first_step(found):
    said = found["isolation"]
    for name in ("lightning", "accelerate"):
        assert (
            "pass use_cache=False to the model; isolation_check=False turns this check off"
            in said[name]
        )
        assert said[f"{name}, off"] == ""
    assert said["accelerate, right"] == ""


def test_samples_and_tokens_are_those_that_were_trained(found):
    counts = found["counts"]
    for name in ("samples", "again"):
        reported, trained = counts[name]
        assert reported == pytest.approx(trained, rel=1e-2)
    assert counts["seen"][0] == counts["seen"][1]
    assert counts["num_tokens"][0] == counts["num_tokens"][1]
    assert set(counts["batch size"]) == {2}
    assert counts["twice"][0] == counts["twice"][1]


def test_the_last_batches_count_where_the_last_steps_are_skipped(found):
    expected = found["skipped"].pop("expected")
    assert found["skipped"] == dict.fromkeys(("trainer", "accelerate", "lightning"), expected)


def test_counts_are_of_all_ranks(found, home):
    batches = [next_two(home, rank) for rank in range(2)]
    tokens = sum(int((batch["seq_idx"] >= 0).sum()) for mine in batches for batch in mine)
    samples = sum(len(batch.rows.spans) for mine in batches for batch in mine)
    for seen, trained in found["ranks"]["hf"]:
        assert seen == tokens and trained == pytest.approx(samples, rel=1e-2)


def next_two(home: Path, rank: int) -> list:
    loader = open_loader(home, rank=rank, world_size=2, output="numpy")
    return [batch for batch in loader if batch.step < 4]


def test_lightning_validates_on_every_batch_each_time(found):
    whole = [[0, ids] for ids in found["evaluation"]["whole"]]
    assert len(whole) > 2
    sanity, *passes = found["evaluation"]["lightning"]
    assert sanity == whole[:2] and passes == [whole] * 3
    assert found["evaluation"]["limited"] == [whole[:2]] * 4
    both = [[number, ids] for number in range(2) for _, ids in whole]
    assert found["evaluation"]["two"][1:] == [both] * 2
    assert (
        "an evaluation must have an end: the Loader has epochs=None"
        in found["evaluation"]["endless"]
    )


def test_lightning_validates_on_every_batch_each_time_without_a_loader_module(found):
    whole = [[0, ids] for ids in found["evaluation"]["whole"]]
    said = found["evaluation"]["without a LoaderModule"]
    assert said["validated"] == [whole[:2], whole, whole, whole]
    assert said["limited"] == [whole[:2]] * 4
    assert said["alone"] == [whole[:3], whole]
    for refusal in said["same"]:
        assert "one Loader cannot train and evaluate" in refusal
    assert (
        "saved at the end of an epoch" in said["end of an epoch"]
        and "LoaderModule" in said["end of an epoch"]
    )


def test_accelerate_evaluates_on_every_batch_each_time(found):
    whole = found["evaluation"]["whole"]
    assert found["evaluation"]["accelerate"] == [whole, whole[:2], whole, whole]
    assert found["evaluation"]["saved"] == 0


def test_evaluation_on_two_ranks_sees_every_batch_each_time(found, home):
    for rank in range(2):
        loader = open_loader(home, epochs=1, seed=9, rank=rank, world_size=2, output="numpy")
        mine = [batch["input_ids"].tolist() for batch in loader]
        assert found["ranks"]["accelerate"][rank] == [mine[:2], mine, mine]
        sanity, *passes = found["ranks"]["lightning"][rank]
        assert [ids for _, ids in sanity] == mine[:2]
        assert [[ids for _, ids in part] for part in passes] == [mine] * 3


def test_accelerator_prepare_refuses_a_loader(found):
    assert "batches = attach(accelerator, loader)" in found["evaluation"]["prepare"]
    assert found["evaluation"]["prepare others"] == ""
