"""Real processes of every trainer: ranks that share their rows get them, other groups get other rows, and all have one state."""

import json
import sys
from itertools import chain
from pathlib import Path

import pytest

from .launchers import SAMPLES
from .meshes import GROUP
from .test_launchers import run

pytest.importorskip("torch")

TRAINERS = {
    "own_loop": (
        "inner",
        "outer",
        "three",
        "part",
        "flat",
        "own name",
        "size one",
        "parts",
        "neighbours",
        "told",
    ),
    "accelerate": ("tp", "cp"),
    "trainers": ("hugging face", "trl"),
    "lightning": ("lightning",),
    "megatron": ("tensor", "pipeline", "context"),
    "torchtitan": (
        *("titan tp", "titan cp", "titan pp"),
        *("titan mesh tp", "titan mesh cp", "titan mesh pp"),
    ),
}
QUICK = ("own_loop", "accelerate")


def outcomes(trainer: str, ranks: int, folder: Path, names: tuple[str, ...]) -> dict[str, list]:
    """Run a trainer's processes; return what each rank has written, by the name of the Loader."""
    command = [sys.executable, "-m", "tests.extras.trainers.meshes", trainer, str(ranks)]
    result = run(command, folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return {
        name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(ranks)]
        for name in names
    }


def check(found: list, ranks: int) -> None:
    """Rows of a group are equal, rows of different groups are disjoint and together all rows; all ranks have one state."""
    rows: dict[int, list[int]] = {}
    for outcome in found:
        assert "refused" not in outcome, outcome
        assert rows.setdefault(outcome["group"], outcome["rows"]) == outcome["rows"]
        assert outcome["state"] == found[0]["state"]
    assert len(rows) == ranks // GROUP
    assert sorted(chain.from_iterable(rows.values())) == list(range(SAMPLES))


CASES = [(trainer, 4) for trainer in QUICK]
CASES += [(trainer, 2) for trainer in TRAINERS]
CASES += [(trainer, 4) for trainer in TRAINERS if trainer not in QUICK]


@pytest.mark.parametrize(
    ("trainer", "ranks"),
    [
        case if number < len(QUICK) else pytest.param(*case, marks=pytest.mark.soak)
        for number, case in enumerate(CASES)
    ],
)
def test_ranks_of_a_group_get_the_same_rows_and_groups_get_different_ones(
    trainer: str, ranks: int, tmp_path: Path
) -> None:
    found = outcomes(trainer, ranks, tmp_path, TRAINERS[trainer])
    for name in TRAINERS[trainer]:
        check(found[name], ranks)
    if trainer == "own_loop":
        check_log(tmp_path, ranks)
    for name, sentence in REFUSED.get(trainer, {}).items():
        if name not in NOT_OF_ONE_GROUP or ranks > GROUP:
            said = refusals(tmp_path, ranks, name)
            assert said and all(sentence in text for text in said), (name, said)


def check_log(folder: Path, ranks: int) -> None:
    """All ranks log the same: the data of all groups, each once."""
    found = [json.loads((folder / f"logged-{rank}.json").read_text()) for rank in range(ranks)]
    line = found[0]["line"]
    assert all(each["line"] == line for each in found)
    assert line["data/tokens"] == 3 * SAMPLES
    assert line["data/samples"] == SAMPLES
    trained = {each["group"]: each["trained"] for each in found}
    assert line["data/trained_tokens"] == sum(trained.values())


# Ranks that contradict the trainer, meshes that say too little, and what the refusal says.
REFUSED = {
    "own_loop": {
        "experts": "whether the ranks of 'ep' get different rows cannot be told",
        "unnamed": "2 dimensions without names",
        "only tp": "the other groups would train the same rows",
        "joined": "whether the ranks of 'dp_shard_cp' get different rows cannot be told",
        "half": "mesh= is a part, with ['dp_replicate']",
        "renamed": "mesh= is a part, with ['rows']",
        "one part": "no rank gets part 1 of 2 of the rows of data-parallel rank 0",
        "lost parts": "so the other parts would be lost",
        "outside": "mesh= does not contain rank 0",
    },
    "accelerate": {"another rank": "the Loader gives this process the rows of rank 0 of"},
    "megatron": {"cut twice": "the parts are those of Megatron"},
    "torchtitan": {
        "world": "whether the ranks of 'world' get different rows cannot be told",
        "loss": "get different rows cannot be told",
    },
}
NOT_OF_ONE_GROUP = ("only tp",)  # one group is all ranks, so the mesh says enough


def refusals(folder: Path, ranks: int, name: str) -> list[str]:
    """Return what each rank that has made this Loader was told; "" if it was not refused."""
    files = [folder / f"{name}-{rank}.json" for rank in range(ranks)]
    return [json.loads(file.read_text()).get("refused", "") for file in files if file.exists()]
