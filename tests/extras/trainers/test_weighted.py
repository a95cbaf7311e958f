"""Weights of tokens in the Trainers: each optimizer step is the weighted mean over all of its tokens, as computed by hand."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .test_launchers import run

torch = pytest.importorskip("torch")
pytest.importorskip("trl")


@pytest.fixture
def folder(tokenizer_path: Path, tmp_path: Path) -> Path:
    (tmp_path / "tokenizer").symlink_to(tokenizer_path)
    return tmp_path


# trl's own SFTConfig sets it by its former name
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", ["hugging face", "trl"])
def test_steps_and_evaluations_are_weighted_means(folder: Path, kind: str) -> None:
    from .weighted import by_hand, parameters, train

    trainer = train(kind, folder)
    expected, losses, evaluated = by_hand(folder)
    torch.testing.assert_close(parameters(trainer.model), expected, rtol=0, atol=2e-5)
    logged = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    assert logged == pytest.approx(losses, abs=2e-4)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(evaluated, abs=1e-4)


def test_weights_of_one_give_the_trainer_s_own_loss(folder: Path) -> None:
    from penstock.extras.trainers.weighted_loss import WeighsTokens

    from .weighted import parameters, train

    weighted = train("hugging face", folder, weights=False)
    unweighted = train("hugging face", folder, weights=False, **WITHOUT)
    assert isinstance(weighted, WeighsTokens)
    torch.testing.assert_close(
        parameters(weighted.model), parameters(unweighted.model), rtol=0, atol=1e-5
    )


WITHOUT: dict[str, Any] = {"message_weights": False}


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["hugging", "trl"])
def test_ranks_do_not_change_the_weighted_loss(folder: Path, kind: str) -> None:
    from .weighted import by_hand

    command = [sys.executable, "-m", "tests.extras.trainers.weighted", kind, "2"]
    result = run(command, folder)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads((folder / f"{kind}-2.json").read_text())
    expected, _, evaluated = by_hand(folder)
    torch.testing.assert_close(torch.tensor(found["parameters"]), expected, rtol=0, atol=2e-5)
    assert found["evaluated"] == pytest.approx(evaluated, abs=1e-4)
