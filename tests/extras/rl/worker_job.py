"""A rollout worker of a kill test: python worker_job.py RUN NAME.  Ends when its owner is gone or all is done."""

import json
import random
import sys
import time
from pathlib import Path

from penstock.errors import LeaseError
from penstock.rl import connect

run, name = Path(sys.argv[1]), sys.argv[2]
rng = random.Random(name)
client = connect((run / "address").read_text(), name=name, patience=60.0)
try:
    with (run / f"rollouts-{name}").open("a") as file:
        while not client.finished:
            for prompt in client.take(rng.randrange(1, 6)):
                time.sleep(rng.random() * 0.01)
                rollout = {
                    "ordinal": prompt.ordinal,
                    "lease": prompt.lease,
                    "epoch": prompt.epoch,
                    "id": prompt.record["id"],
                }
                if rng.random() < 0.1:
                    client.back(prompt, note={"tokens": 17})
                else:
                    file.write(json.dumps(rollout) + "\n")
                    file.flush()
            time.sleep(0.005)
except LeaseError:
    pass  # the owner was killed
