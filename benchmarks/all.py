"""Run all benchmarks.

python benchmarks/all.py [NAME …]            in full, one after the other; what was measured from the same code already is left out
python benchmarks/all.py --again [NAME …]    all of them
python benchmarks/all.py --minutes N         begins none after so many minutes; those of the front page come first
python benchmarks/all.py --quick             those with floors in results/floors.json; exit code 1 if a number is below its floor
python benchmarks/all.py --tiny --out FILE   all in one process, in seconds, for `make test`; FILE holds what each reported
"""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pages
import stand

# After those of the front page: what a user waits for.
NEXT = ("startup", "remote", "waits", "scale", "resume", "plan", "records", "many_files")
NO_BENCHMARKS = ("all", "bucket", "compare", "contestants", "data", "pages", "stand")


def names() -> list[str]:
    """All scripts, the most telling ones first: a full run may be stopped."""
    found = {path.stem for path in stand.ROOT.glob("*.py")}.difference(NO_BENCHMARKS)
    first = [place.partition(".")[0] for _, place in pages.FRONT]
    order = dict.fromkeys([*first, *NEXT, *sorted(found)])
    return [name for name in order if name in found]


def option(name: str) -> str | None:
    """The word behind an option of the command line."""
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


def chosen() -> list[str]:
    values = [option("--out"), option("--minutes")]
    given = [word for word in sys.argv[1:] if not word.startswith("--") and word not in values]
    if unknown := set(given) - set(names()):
        sys.exit(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    return given or names()


def one(name: str) -> dict[str, Any]:
    """The entry of one benchmark, measured in this process."""
    module = importlib.import_module(name)
    return stand.measure(name, module.BENCHMARK, module.main)


def is_measured(name: str) -> bool:
    """Whether the file of results has this benchmark from the code as it is."""
    entry = stand.read_results().get(name)
    return entry is not None and not pages.is_old(name, entry)


def in_full() -> int:
    begin, failed, left, todo = time.perf_counter(), [], [], chosen()
    minutes = float(option("--minutes") or "inf")
    for number, name in enumerate(todo, 1):
        head = f"[{number}/{len(todo)}, {time.perf_counter() - begin:.0f} s] {name}"
        if is_measured(name) and "--again" not in sys.argv:
            print(f"{head}: measured already", flush=True)
            continue
        if time.perf_counter() - begin > 60 * minutes:
            left.append(name)
            continue
        print(head, flush=True)
        started = time.perf_counter()
        done = subprocess.run([sys.executable, str(stand.ROOT / f"{name}.py")])
        if done.returncode:
            failed.append(name)
        print(f"{head}: {time.perf_counter() - started:.0f} s", flush=True)
    pages.write()
    print(
        f"{time.perf_counter() - begin:.0f} s"
        + (f"; failed: {', '.join(failed)}" if failed else "")
        + (f"; no time for: {', '.join(left)}" if left else "")
    )
    return int(bool(failed))


def quick() -> int:
    """Ratios of CPU time against floors, which are a third to a half of what the pages show."""
    begin = time.perf_counter()
    floors: dict[str, float] = json.loads((stand.ROOT / "results" / "floors.json").read_text())
    lines, failed = [], False
    for name in sorted({key.partition(".")[0] for key in floors}):
        entry = stand.fresh(one, name).value
        if entry["error"]:
            print(entry["error"], file=sys.stderr)
            return 1
        for fields in entry["numbers"]:
            number = stand.Number(**fields)
            floor = floors.pop(f"{name}.{number.key}", None)
            if floor is None:
                continue
            below = number.value < floor
            failed |= below
            lines.append([name, number.what, number.shown, f"{floor:g}", "BELOW" if below else ""])
    print("\n".join(stand.table(["script", "number", "found", "floor", ""], lines)))
    print(f"{time.perf_counter() - begin:.0f} s")
    if floors:
        print(f"floors without a number: {', '.join(floors)}", file=sys.stderr)
    return int(failed or bool(floors))


def tiny() -> int:
    entries = {}
    for name in chosen():
        cpu = sum(os.times()[:4])
        with contextlib.redirect_stdout(sys.stderr):
            entries[name] = one(name)
        spent = sum(os.times()[:4]) - cpu
        error = entries[name]["error"].strip().splitlines()
        print(f"{name}: {spent:.1f} s of CPU{': ' + error[-1] if error else ''}", flush=True)
    if out := option("--out"):
        Path(out).write_text(json.dumps(entries))
    return int(any(entry["error"] for entry in entries.values()))


if __name__ == "__main__":
    sys.exit({"full": in_full, "quick": quick, "tiny": tiny}[stand.SIZE]())
