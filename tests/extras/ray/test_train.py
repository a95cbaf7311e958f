"""Ray Train: are the batches of an untouched run trained, though a worker is killed and the run goes on with another number of workers?"""

import json
import runpy
import subprocess
import sys
from collections import defaultdict
from itertools import chain
from pathlib import Path

import pytest

import penstock as ps
from tests.extras.trainers.test_launchers import ALONE, SHARED, expect

from .conftest import Nodes

EXAMPLE = Path(__file__).parents[3] / "examples" / "08_ray_train.py"


@pytest.mark.soak
def test_the_example_trains_the_rows_of_an_untouched_run(two_nodes: Nodes, tmp_path: Path) -> None:
    env = {
        **two_nodes.environment,
        "RAY_ADDRESS": two_nodes.address,
        "GATES": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, EXAMPLE], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    trained: dict[tuple[int, int], dict[int, list[list[str]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    processes = set()
    for path in (tmp_path / "trained").iterdir():
        world, step, rank, process = path.stem.split()
        processes.add(process)
        trained[int(world), int(step)][int(rank)].append(json.loads(path.read_text()))
    assert len(processes) == 5  # two, two again, and one
    for found in chain.from_iterable(ranks.values() for ranks in trained.values()):
        assert all(
            rows == found[0] for rows in found
        )  # a step that was trained again had the same rows
    assert any(len(found) == 2 for ranks in trained.values() for found in ranks.values())
    rows: list[str] = []
    saved = 6  # steps of two workers in the last checkpoint, of which one worker then makes twice as many
    for world, step in [
        *((2, step) for step in range(saved)),
        *sorted(key for key in trained if key[0] == 1),
    ]:
        rows += [row for rank in range(world) for row in trained[world, step][rank][0]]
    records = runpy.run_path(str(EXAMPLE))["RECORDS"]
    store = ps.prepare(
        records,
        template="pretokenized",
        vocab_size=400,
        cache_dir=tmp_path / "own",
        progress="none",
    )
    untouched = ps.Loader(store, batch_size=4, max_length=64, output="numpy", rank=0, world_size=1)
    # ranks share the rows of a step by their cost, and fill the last step with as many empty rows as they need
    expected = [sorted(str(row) for row in batch.provenance if row) for batch in untouched]
    trained_steps = [rows[at : at + 4] for at in range(0, len(rows), 4)]
    assert [sorted(row for row in step if row != "[]") for step in trained_steps] == expected


LAUNCHED = """
import sys
from pathlib import Path
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from tests.extras.trainers.launchers import RANKS, loop, make, record

folder = Path(sys.argv[1])
sent = make(folder)

def train():
    rank = ray.train.get_context().get_world_rank()
    record(folder, "ray: sent", rank, lambda: loop(sent))
    late = make(folder)
    record(folder, "ray: after", rank, lambda: loop(late))

ray.init(runtime_env={"env_vars": {"PYTHONPATH": sys.argv[2]}})
run = RunConfig(storage_path=str(folder / "runs"))
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=RANKS), run_config=run).fit()
"""


@pytest.mark.soak  # TorchTrainer takes 20 s to start and end
def test_a_loader_that_the_driver_made_is_refused_by_the_workers_of_ray_train(
    two_nodes: Nodes, tmp_path: Path
) -> None:
    """T1: it was rank 0 of 1 on every worker."""
    root = str(Path(__file__).parents[3])
    env = {
        **two_nodes.environment,
        "RAY_ADDRESS": two_nodes.address,
        "PYTHONPATH": root,
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHED, str(tmp_path), root],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    expect(tmp_path, {"ray: sent": ALONE, "ray: after": SHARED}, done.stdout + done.stderr)
