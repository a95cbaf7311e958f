"""Can a package of somebody else add a format, a template, a sample kind, an observer and a reason?  It is built, installed, used."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "ledger-of-somebody"
version = "1.0"

[project.entry-points."penstock.formats"]
ledger = "ledger_of_somebody:LEDGER"

[project.entry-points."penstock.templates"]
entry = "ledger_of_somebody:ENTRY"

[project.entry-points."penstock.kinds"]
entries = "ledger_of_somebody:ENTRIES"

[project.entry-points."penstock.observers"]
diary = "ledger_of_somebody:Diary"

[project.entry-points."penstock.reasons"]
no_amount = "ledger_of_somebody:NO_AMOUNT"

[tool.hatch.build.targets.wheel]
packages = ["ledger_of_somebody"]
"""

PACKAGE = '''\
"""Entries of a ledger: lines of `amount | text`."""

import os

import numpy as np

from penstock.loader.tokens import Tokens
from penstock.reasons import Reason
from penstock.sources import Format, ListSource, Opener
from penstock.sources.opener import NoOptions
from penstock.templates import FunctionTemplate
from penstock.templates.shapes import Fit, RecordShape
from penstock.types import Column

NO_AMOUNT = Reason("the entry has no amount", "ask the clerk")
AMOUNT = Column(name="amount", dtype="float32", per="sample")


def open_ledger(request):
    records = []
    for line in (line for path in request.paths for line in open(path, encoding="utf-8")):
        amount, _, text = line.rstrip("\\n").partition(" | ")
        records.append({"entry": text, "amount": float(amount)})
    return ListSource(records, name=request.name)


CODE = Opener(NoOptions, open_ledger)
LEDGER = Format(name="ledger", code="ledger_of_somebody:CODE", suffixes=(".ledger",))


def read_entry(record):
    return {"segments": [{"text": record["entry"], "label": True}], "amount": record["amount"]}


def open_entry(tokenizer):
    return FunctionTemplate(read_entry, tokenizer, version="1", columns=(AMOUNT,))


def looks_like_entry(record, options):
    return Fit(uses=("entry", "amount")) if "entry" in record else None


ENTRY = RecordShape(name="entry", looks_like=looks_like_entry, template=open_entry)


class Entries(Tokens):
    """Samples of the ledger: tokens whose batches are packed as usual."""

    name = "entries"

    def matches(self, columns):
        return AMOUNT in columns


ENTRIES = Entries()


class Diary:
    """Writes each delivered step to a file."""

    def attach(self, loader):
        self.kind = loader.kind

    def begin(self, run):
        self._write("begin")

    def step(self, run, step, batch):
        self._write(f"step {step.number} of {self.kind}: {np.sort(batch['amount']).tolist()}")

    def end(self, run):
        self._write("end")

    def _write(self, line):
        with open(os.environ["DIARY"], "a", encoding="utf-8") as file:
            print(line, file=file)
'''

RUN = """\
import sys
import penstock as ps
from penstock.reasons import meaning

assert meaning("no_amount") == "the entry has no amount"
assert meaning("of_nobody") == "of nobody"
data, tokenizer, cache = sys.argv[1:]
assert ps.open(data)[1] == {"entry": "the lazy dog", "amount": 1.5}
store = ps.prepare(data, tokenizer=tokenizer, template="entry", cache_dir=cache, num_proc=1)
loader = ps.Loader(store, batch_size=2, max_length=64, packing="none", shuffle=False, output="numpy", rank=0, world_size=1)
assert loader.kind == "entries"
amounts = [amount for batch in loader for amount in batch["amount"].tolist()]
assert sorted(amounts) == [0.5, 1.5, 2.5, 3.5], amounts
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The package, built by hatchling and installed into a folder of its own."""
    project = tmp_path / "project"
    package = project / "ledger_of_somebody"
    package.mkdir(parents=True)
    (project / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").write_text(PACKAGE)
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    subprocess.run([*pip, *options, str(project)], check=True, capture_output=True, text=True)
    return target


def test_a_package_adds_a_format_a_template_a_kind_an_observer_and_a_reason(
    installed: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    data = tmp_path / "year.ledger"
    lines = ["0.5 | the quick fox", "1.5 | the lazy dog", "2.5 | runs far", "3.5 | away"]
    data.write_text("\n".join(lines) + "\n")
    diary = tmp_path / "diary.txt"
    path = [str(installed), *filter(None, sys.path)]
    environment = {"PYTHONPATH": ":".join(path), "DIARY": str(diary), "PATH": "/usr/bin:/bin"}
    arguments = [str(data), str(tokenizer_path), str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert diary.read_text().splitlines() == [
        "begin",
        "step 0 of entries: [0.5, 1.5]",
        "step 1 of entries: [2.5, 3.5]",
        "end",
    ]
