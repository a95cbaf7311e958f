"""A job that saves when it gets SIGTERM.  python -m tests.journeys.stopping_job FOLDER: runs until SIGTERM, then saves and ends."""

import signal
import sys
from pathlib import Path

from .job import line, open_loader, save

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    loader = open_loader(folder, 0, 1, output="torch", epochs=None)
    told = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    with (folder / "log-0-0.jsonl").open("a") as log:
        for batch in loader:
            log.write(line(batch, 0, 1))
            log.flush()
            if told:
                save(loader, folder / "state.json")
                break
