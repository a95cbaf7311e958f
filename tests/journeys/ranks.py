"""A job of several ranks, killed -9 again and again, each time to go on with another number of ranks.

python -m tests.journeys.ranks kill FOLDER KILLS SEED imports torch once and forks the ranks from there.  They meet through gloo.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from .job import line, open_loader, save

SAVE_EVERY = 3


def train(folder: Path, run: int, rank: int, world_size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet-{run}", rank=rank, world_size=world_size
    )
    loader = open_loader(folder, None, None, output="torch")  # ranks as torch.distributed says
    assert (loader.world.rank, loader.world.size) == (rank, world_size)
    saved = folder / "state.json"
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    with (folder / f"log-{run}-{rank}.jsonl").open("a") as log:
        for batch in loader:
            log.write(line(batch, rank, world_size))
            log.flush()
            dist.all_reduce(torch.ones(1))  # where gradients would meet: no rank goes on alone
            if rank == 0 and (batch.step + 1) % SAVE_EVERY == 0:
                save(loader, saved)


def disagree(folder: Path, run: int, rank: int, world_size: int) -> None:
    """Rank 1 has another seed, or another position."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet-{run}", rank=rank, world_size=world_size
    )
    loader = open_loader(folder, None, None, seed=8 if rank == 1 and run == 0 else 7)
    if rank == 1 and run == 1:
        loader.seek(2)
    try:
        next(iter(loader))
    except ValueError as error:
        (folder / f"said-{run}-{rank}").write_text(str(error))


def fork(work: Callable[..., None], folder: Path, run: int, world_size: int) -> list[int]:
    ranks = []
    for rank in range(world_size):
        child = os.fork()
        if not child:
            os.setsid()  # a session of its own, by which all that it starts is found again
            code = 1
            try:
                work(folder, run, rank, world_size)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        ranks.append(child)
    return ranks


def wait(ranks: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]


def processes(sessions: list[int]) -> list[int]:
    """Live processes of these sessions; a zombie has ended, but its parent has not waited for it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) in sessions and state != "Z":
                found.append(int(entry.name))
    return found


def kill_again_and_again(folder: Path, kills: int, chance: random.Random) -> None:
    hits = 0
    for run in range(kills):
        world_size = 3 if run == 0 else chance.randrange(1, 5)
        ranks = fork(train, folder, run, world_size)
        steps, more = (
            chance.randrange(6),
            chance.random() / 50,
        )  # short: a quick machine must not finish the epoch
        begun = time.monotonic()
        while _lines(folder / f"log-{run}-0.jsonl") < steps and time.monotonic() < begun + 20:
            time.sleep(0.005)
        time.sleep(more)
        alive = processes(ranks)
        for rank in (
            ranks
        ):  # first all stop: a rank that runs on sees its peers end, and ends with gloo's error
            os.kill(rank, signal.SIGSTOP)
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
        ends = set(wait(ranks))
        assert ends <= {-signal.SIGKILL, 0}
        hits += -signal.SIGKILL in ends
        begun = time.monotonic()
        while left := processes(ranks):
            assert time.monotonic() < begun + 10, f"{left} outlive their parent"
            time.sleep(0.05)
        shared = [
            path
            for path in Path("/dev/shm").iterdir()
            if any(f"_{pid}_" in path.name for pid in alive)
        ]
        assert shared == [], shared
        state = folder / "state.json"
        (folder / f"kept-{run}").write_text(
            str(json.loads(state.read_text())["step"] if state.exists() else 0)
        )
    assert hits > kills // 2  # most kills came while a run was under way
    assert wait(fork(train, folder, kills, 2)) == [0, 0]


def _lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


if __name__ == "__main__":
    home = Path(sys.argv[2])
    if sys.argv[1] == "kill":
        kill_again_and_again(home, int(sys.argv[3]), random.Random(int(sys.argv[4])))
    else:
        assert [wait(fork(disagree, home, run, 3)) for run in range(2)] == [[0, 0, 0]] * 2
