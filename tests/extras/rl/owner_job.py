"""The trainer of a kill test: owns the prompts, trains on what workers send, and saves weights and state together.

python owner_job.py FOLDER RUN.  "Weights" are the list of all that was trained.  Workers write rollouts as lines into FOLDER/RUN.
"""

import json
import sys
import time
from pathlib import Path

import penstock as ps
from penstock.rl import serve

folder, run = Path(sys.argv[1]), Path(sys.argv[1]) / sys.argv[2]
checkpoint = folder / "checkpoint.json"

prompts = ps.Prompts(
    ps.open(folder / "data.jsonl", cache_dir=folder / "cache"), epochs=2, lease=2.0, repeats=1
)
weights: list[list[int]] = []
if checkpoint.exists():
    saved = json.loads(checkpoint.read_text())
    weights = saved["weights"]
    prompts.load_state_dict(saved["prompts"])


def save() -> None:
    temporary = checkpoint.with_suffix(".tmp")
    temporary.write_text(json.dumps({"weights": weights, "prompts": prompts.state_dict()}))
    temporary.replace(checkpoint)


read: dict[Path, int] = {}
step = 0
with serve(prompts) as server:
    (run / "address.tmp").write_text(server.address)
    (run / "address.tmp").rename(run / "address")
    while not prompts.finished:
        for file in run.glob("rollouts-*"):
            text = file.read_text()
            lines = text[read.get(file, 0) : text.rfind("\n") + 1]
            read[file] = text.rfind("\n") + 1
            rollouts = {(r["ordinal"], r["lease"]): r for r in map(json.loads, lines.splitlines())}
            kept = set(prompts.accept(rollouts))
            trained = [rollout for key, rollout in rollouts.items() if key[0] in kept]
            weights += [[rollout["epoch"], rollout["id"]] for rollout in trained]
            prompts.done([(rollout["ordinal"], rollout["lease"]) for rollout in trained])
            step += bool(trained)
            if step % 3 == 0:
                save()
        time.sleep(0.005)
    save()
(run / "finished").touch()
