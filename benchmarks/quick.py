"""Has anything become slow?  The most telling ratios, measured small, against the floors stored beside the results.  Under three minutes.

    python benchmarks/quick.py        exit code 1 if a ratio is below its floor

A script that knows `--quick` prints its ratios as one line of JSON and writes no page.  Ratios are of CPU time, and floors are a third
to a half of what results/*.md show: a busy machine must not fail, a change of kind must.
"""

import json
import subprocess
import sys
import time

from stand import RESULTS, ROOT, table

SCRIPTS = ("pack", "templates", "loader", "resume")


def main() -> int:
    floors: dict[str, float] = json.loads((RESULTS / "floors.json").read_text())
    lines, failed, begin = [], False, time.perf_counter()
    for script in SCRIPTS:
        done = subprocess.run(
            [sys.executable, str(ROOT / f"{script}.py"), "--quick"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"{script}.py --quick failed:\n{done.stderr.strip()[-2000:]}", file=sys.stderr)
            return 1
        for name, found in json.loads(done.stdout.strip().splitlines()[-1]).items():
            floor = floors.pop(f"{script}: {name}", None)
            below = floor is not None and found < floor
            failed |= below
            lines.append(
                [
                    script,
                    name,
                    f"{found:.2f}",
                    "" if floor is None else f"{floor:g}",
                    "BELOW" if below else "",
                ]
            )
    print("\n".join(table(["script", "ratio", "found", "floor", ""], lines)))
    print(f"{time.perf_counter() - begin:.0f} s")
    if floors:
        print(f"floors without a number: {', '.join(floors)}", file=sys.stderr)
    return int(failed or bool(floors))


if __name__ == "__main__":
    sys.exit(main())
