"""How long does a command take before it does any work?  From the start of the process, beside `AutoTokenizer` and `load_dataset`.

    python benchmarks/startup.py [TOKENIZER …]     folders with tokenizer.json; without one a 32,000-token BPE is trained here

Every run is a process of its own, on one row of data.  All take turns.  What counts is the median of several runs by the wall clock, from
the start of the process to its end: that is what a user waits.  So run it on an idle machine; the page states the load.  All packages
have their bytecode compiled.  Writes results/startup.md.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from prepare import library_lines, train_tokenizer
from stand import Page, Verdict, table

REPEAT = 7
PENSTOCK = [sys.executable, "-m", "penstock"]
ROW = {
    "messages": [
        {"role": "user", "content": "Which of these cities lies furthest to the north?"},
        {"role": "assistant", "content": "Reykjavik, at 64 degrees."},
    ]
}
CHAT = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"


class Bench:
    """Programs around one tokenizer, in a folder of their own."""

    def __init__(self, tokenizer: Path, folder: Path) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        folder.mkdir()
        (folder / "row.jsonl").write_text(json.dumps(ROW) + "\n")
        has_template = (
            tokenizer / "chat_template.jinja"
        ).exists() or "chat_template" in json.loads(
            (tokenizer / "tokenizer_config.json").read_text()
        )
        (folder / "chat.jinja").write_text(CHAT)
        self.chat = "" if has_template else "chat_template: chat.jinja\n"
        self.recipe("finished")
        self.recipe("unprepared")
        self.run([*PENSTOCK, "prepare", "finished.yaml"])

    def recipe(self, cache: str) -> str:
        text = f"data: row.jsonl\ntemplate: messages\ntokenizer: {self.tokenizer}\ncache_dir: {cache}\n{self.chat}"
        (self.folder / f"{cache}.yaml").write_text(f"{text}max_length: 4096\nbatch_size: 1\n")
        return f"{cache}.yaml"

    def run(self, words: list[str]) -> tuple[float, float]:
        """Seconds by the clock and of CPU of one process."""
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        offline = {
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(self.folder / "hf"),
            "TOKENIZERS_PARALLELISM": "false",
        }
        begin = time.perf_counter()
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={
                **environment,
                **offline,
                "PYTHONPYCACHEPREFIX": str(self.folder.parent / "bytecode"),
            },
        )
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stderr.close()
        if process.returncode:
            raise RuntimeError(f"{' '.join(words)}: {said.decode(errors='replace')[-2000:]}")
        return time.perf_counter() - begin, used.ru_utime + used.ru_stime

    def works(self) -> dict[str, list[str]]:
        """Programs by name."""
        python = [sys.executable, "-c"]
        file = str(self.tokenizer / "tokenizer.json")
        prepare = (
            "import penstock as ps\n"
            f"options = {{'chat_template': open('chat.jinja').read()}} if {bool(self.chat)} else {{}}\n"
            f"ps.prepare('row.jsonl', tokenizer={str(self.tokenizer)!r}, template='messages', cache_dir=CACHE, "
            "progress='none', **options)\n"
        )
        fresh = "import tempfile\nCACHE = tempfile.mkdtemp(dir='.')\n"
        return {
            "python": [*python, "pass"],
            "import numpy": [*python, "import numpy"],
            "import penstock": [*python, "import penstock"],
            "ps.open": [*python, "import penstock as ps\nps.open('row.jsonl', cache_dir='opened')"],
            LOAD: [*python, f"import tokenizers\ntokenizers.Tokenizer.from_file({file!r})"],
            "fastokens: load": [
                *python,
                f"import fastokens\ntry: fastokens.Tokenizer.from_json_str(open({file!r}).read())\nexcept ValueError: pass",
            ],
            "AutoTokenizer.from_pretrained": [
                *python,
                f"from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained({str(self.tokenizer)!r})",
            ],
            "load_dataset, again": [
                *python,
                "import datasets\ndatasets.load_dataset('json', data_files='row.jsonl')",
            ],
            "ps.prepare, empty cache": [*python, fresh + prepare],
            "ps.prepare, again": [*python, "CACHE = 'script'\n" + prepare],
            "penstock prepare, again": [*PENSTOCK, "prepare", "finished.yaml"],
            "penstock plan": [*PENSTOCK, "plan", "finished.yaml"],
            "penstock stats": [*PENSTOCK, "stats", "finished.yaml"],
            "penstock trace": [*PENSTOCK, "trace", "finished.yaml", "--step", "0"],
            "penstock show": [*PENSTOCK, "show", "finished.yaml", "--row", "0"],
            "penstock show, not prepared": [*PENSTOCK, "show", "unprepared.yaml", "--row", "0"],
            "penstock check": [*PENSTOCK, "check", "finished.yaml"],
        }

    def measure(self) -> dict[str, tuple[float, float]]:
        """Medians of the seconds by the clock and of CPU, by program."""
        works = self.works()
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
        for turn in range(REPEAT + 1):
            for name, words in works.items():
                seconds = self.run(words)
                if turn:  # the first compiles bytecode and fills caches
                    found[name].append(seconds)
        return {
            name: (median(wall for wall, _ in runs), median(cpu for _, cpu in runs))
            for name, runs in found.items()
        }


LOAD = "tokenizers: load"
# What a program may take: seconds, and which other program's time comes on top.
TARGETS = {
    "ps.open": (0.1, "import penstock"),
    "ps.prepare, empty cache": (0.5, LOAD),
    "ps.prepare, again": (0.3, None),
    "penstock prepare, again": (0.3, None),
    "penstock plan": (0.7, None),
    "penstock stats": (0.7, None),
    "penstock trace": (0.7, None),
    "penstock show": (0.7, LOAD),
    "penstock show, not prepared": (0.7, LOAD),
    "penstock check": (0.7, LOAD),
}


def judge(found: dict[str, dict[str, tuple[float, float]]]) -> list[Verdict]:
    """The worst tokenizer counts."""
    verdicts = []
    for name, (most, base) in TARGETS.items():
        over = {
            each: times[name][0] - (times[base][0] if base else 0) for each, times in found.items()
        }
        worst = max(over, key=lambda each: over[each])
        beyond = f" more than `{base}`" if base else ""
        verdicts.append(
            Verdict(
                name, f"{over[worst]:.2f} s{beyond} ({worst})", f"≤ {most} s", over[worst] <= most
            )
        )
    return verdicts


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        given = [Path(each).resolve() for each in sys.argv[1:]]
        if not given:
            trained = Path(scratch, "trained")
            trained.mkdir()
            given = [train_tokenizer(library_lines(), trained)]
        packages = (
            "tokenizers",
            "fastokens",
            "transformers",
            "datasets",
            "numpy",
            "pyarrow",
            "click",
        )
        notes = [
            f"One row; median of {REPEAT} runs, taking turns; seconds by the wall clock from the start of the process to its end",
            f"`{LOAD}` is a process of its own: the interpreter, the import and `Tokenizer.from_file`",
        ]
        page = Page(
            "startup", "What every command costs before it works", packages=packages, notes=notes
        )
        found = {
            each.name: Bench(each, Path(scratch, f"bench-{each.name}")).measure() for each in given
        }
        rows = [
            [name, *(f"{times[name][0]:.2f} ({times[name][1]:.2f})" for times in found.values())]
            for name in next(iter(found.values()))
        ]
        page.write(
            judge(found), {"Seconds by the clock (of CPU)": table(["program", *found], rows)}
        )


if __name__ == "__main__":
    main()
