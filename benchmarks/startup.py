"""How long does a command take before it does any work?  From the start of the process, beside `AutoTokenizer` and `load_dataset`.

python benchmarks/startup.py [--tiny] [TOKENIZER …]     folders with tokenizer.json; without one a 32,000-token BPE is trained here

Every run is a process of its own, on one row of data.  All take turns.  What counts is the median of several runs by the wall clock, from
the start of the process to its end: that is what a user waits.  So run it on an idle machine; the page states the load.  All packages
have their bytecode compiled.
"""

import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from data import CHAT, given_tokenizers, library_lines, train_tokenizer
from stand import Benchmark, Report, Timing, run_program, sized

REPEAT = sized(5, 1)
PENSTOCK = [sys.executable, "-m", "penstock"]
ROW = {
    "messages": [
        {"role": "user", "content": "Which of these cities lies furthest to the north?"},
        {"role": "assistant", "content": "Reykjavik, at 64 degrees."},
    ]
}
# What a tiny run starts: each takes a good part of a second, and the tests of commands run the others.
TINY = (
    "tokenizers: load",
    "AutoTokenizer.from_pretrained",
    "load_dataset, again",
    "ps.prepare, empty cache",
    "ps.prepare, again",
    "penstock plan",
)

BENCHMARK = Benchmark(
    title="What every command costs before it works",
    question="How long does a command take before it does any work, from the start of its process?",
    measures=(
        "cli",
        "api",
        "recipe",
        "sources",
        "templates",
        "store",
        "cache",
        "places",
        "plugins",
        "settings",
    ),
    peers={
        "tokenizers": "`Tokenizer.from_file` in a process that imports nothing else",
        "transformers": "`AutoTokenizer.from_pretrained` of the same folder",
        "datasets": "`load_dataset('json')` of the same file, which it has cached",
    },
    packages=("fastokens", "numpy", "pyarrow", "click"),
    notes=(
        f"One row; medians of {REPEAT} runs, taking turns; seconds by the wall clock from the start of the process to its end",
        "`tokenizers: load` is a process of its own: the interpreter, the import and `Tokenizer.from_file`",
    ),
)


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
        # Its tokens need not be in that vocabulary.
        self.chat = "" if has_template else "chat_template: chat.jinja\non_missing_tokens: warn\n"
        self.recipe("finished")
        self.recipe("unprepared")
        self.run([*PENSTOCK, "prepare", "finished.yaml"])

    def recipe(self, cache: str) -> str:
        text = f"data: row.jsonl\ntemplate: messages\ntokenizer: {self.tokenizer}\ncache_dir: {cache}\n{self.chat}"
        (self.folder / f"{cache}.yaml").write_text(f"{text}max_length: 4096\nbatch_size: 1\n")
        return f"{cache}.yaml"

    def run(self, words: list[str], timing: Timing | None = None) -> None:
        """One process: its seconds by the clock and of CPU."""
        offline = {
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(self.folder / "hf"),
            "TOKENIZERS_PARALLELISM": "false",
        }
        done = run_program(words, env=offline, cwd=self.folder)
        if timing is not None:
            timing.wall.append(done.seconds)
            timing.cpu.append(done.cpu)

    def works(self) -> dict[str, list[str]]:
        """Programs by name."""
        python = [sys.executable, "-c"]
        file = str(self.tokenizer / "tokenizer.json")
        prepare = (
            "import penstock as ps\n"
            "options = {'chat_template': open('chat.jinja').read(), 'on_missing_tokens': 'warn'}\n"
            f"options = options if {bool(self.chat)} else {{}}\n"
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

    def measure(self, absent: dict[str, str]) -> dict[str, Timing]:
        """Timings by program."""
        works = {
            name: words
            for name, words in self.works().items()
            if OF_PEERS.get(name) not in absent and (name in TINY or sized(True, False))
        }
        found = {name: Timing() for name in works}
        for turn in range(sized(REPEAT + 1, 1)):
            for name, words in works.items():
                # The first turn compiles bytecode and fills caches.
                self.run(words, found[name] if turn or sized(False, True) else None)
        return found


LOAD = "tokenizers: load"
# What a program may take: seconds, and which other program's time comes on top.
TARGETS = {
    "ps.open": (0.1, "import penstock"),
    "ps.prepare, empty cache": (0.4, LOAD),
    "ps.prepare, again": (0.25, None),
    "penstock prepare, again": (0.3, None),
    "penstock plan": (0.7, None),
    "penstock stats": (0.7, None),
    "penstock trace": (0.7, None),
    "penstock show": (0.7, LOAD),
    "penstock show, not prepared": (0.7, LOAD),
    "penstock check": (0.7, LOAD),
}


OF_PEERS = {
    "tokenizers: load": "tokenizers",
    "AutoTokenizer.from_pretrained": "transformers",
    "load_dataset, again": "datasets",
}


def judge(report: Report, found: dict[str, dict[str, Timing]]) -> None:
    """The worst tokenizer counts."""
    for name, (most, base) in TARGETS.items():
        over = {}
        for tokenizer, timings in found.items():
            if name not in timings or (base and base not in timings):
                continue
            bases = timings[base].wall if base else [0.0] * len(timings[name].wall)
            over[tokenizer] = [a - b for a, b in zip(timings[name].wall, bases, strict=True)]
        if over:
            worst = max(over, key=lambda each: median(over[each]))
            beyond = f", more than `{base}`" if base else ""
            key = (
                name.replace("penstock ", "")
                .replace("ps.", "ps_")
                .replace(",", "")
                .replace(" ", "_")
            )
            what = f"{name}{beyond}"
            report.number(key, what, over[worst], "s", at_most=most, note=worst)
    for peer, key, mine, theirs in (
        ("datasets", "against_datasets", "ps.prepare, again", "load_dataset, again"),
        (
            "transformers",
            "against_transformers",
            "ps.prepare, empty cache",
            "AutoTokenizer.from_pretrained",
        ),
        ("tokenizers", "against_tokenizers", "ps.prepare, empty cache", LOAD),
    ):
        timings = next(iter(found.values()))
        if mine in timings and theirs in timings:
            what = f"{mine}, against `{theirs}`"
            why = "it loads the tokenizer and does nothing else; ours also opens, renders, encodes and writes a store"
            report.ratio(key, what, timings[theirs], timings[mine], peer=peer, why=why)


def main(report: Report) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        given = given_tokenizers()
        if not given:
            given = [train_tokenizer(library_lines()[::5], Path(scratch, "trained"))]
        found = {
            each.name: Bench(each, Path(scratch, f"bench-{each.name}")).measure(report.absent)
            for each in given
        }
        judge(report, found)
        rows = [
            [
                name,
                *(
                    f"{timings[name].seconds:.2f} ({median(timings[name].cpu):.2f})"
                    for timings in found.values()
                ),
            ]
            for name in next(iter(found.values()))
        ]
        report.table("Seconds by the clock (of CPU)", ["program", *found], rows)


if __name__ == "__main__":
    BENCHMARK.run(main)
