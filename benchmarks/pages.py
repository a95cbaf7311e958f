"""Write results/*.md and the table of README.md from results/results.json.

python benchmarks/pages.py

A page of numbers that were measured on other code than there is now says so at its top.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stand import ROOT, Number, digest, read_results, show, table

README = ROOT.parent / "README.md"
FOLDER = ROOT / "results"
OLD = (
    "> **Older than the code.** The code that this page measures has changed since; "
    "`python benchmarks/{name}.py` measures it again."
)
BEGIN, END = "<!-- numbers: written by benchmarks/pages.py -->", "<!-- end of numbers -->"

# The table of the front page: what, and the number that says it.
FRONT = [
    ("First open of a JSONL file of five million rows, against `datasets`", "sources.cold_open"),
    ("Tokenize text to disk, two processes each, against `datasets.map`", "prepare.text"),
    (
        "Chats to tokens and loss masks, against `datasets.map(apply_chat_template)` without masks",
        "templates.chat",
    ),
    ("Pack samples into rows (`best_fit`), the slowest of 16 cases, against trl", "pack.trl"),
    (
        "Packed batches with labels and positions, against `datasets` and a `DataLoader`",
        "loader.datasets",
    ),
    ("The same, against Grain", "loader.grain"),
    ("Resume at 90 % of a million samples, until the first batch", "loader.resume"),
]


def is_old(name: str, entry: Mapping[str, Any]) -> bool:
    """Whether the code that an entry measures is not what it was then."""
    return bool(digest(entry["measures"]) != entry["digest"])


def page(name: str, entry: Mapping[str, Any]) -> str:
    """One page of results."""
    versions = ", ".join(f"{package} {version}" for package, version in entry["versions"].items())
    lines = [f"# {entry['title']}", ""]
    if is_old(name, entry):
        lines += [OLD.format(name=name), ""]
    lines += [
        entry["question"],
        "",
        f"- Command: `{entry['command']}`, {entry['date']} UTC, {entry['seconds']} s in all",
        f"- Versions: penstock at {entry['commit']}, {versions}",
        f"- Machine: {entry['machine']}; load average {entry['load'][0]} at the start, {entry['load'][1]} at the end",
        *(f"- {note}" for note in entry["notes"]),
        "",
        *number_table(entry),
        "",
        *ahead(entry),
    ]
    for part in entry["tables"]:
        lines += [f"## {part['title']}", ""]
        lines += [*part["text"], ""] if part["text"] else []
        lines += [*table(part["header"], part["rows"]), ""] if part["rows"] else []
    if entry["peers"]:
        lines += ["## Peers", ""]
        for peer, settings in entry["peers"].items():
            missing = (
                f" **Not measured**: {entry['absent'][peer]}." if peer in entry["absent"] else ""
            )
            lines.append(f"- {peer}: {settings}.{missing}")
        lines.append("")
    return "\n".join(lines)


def number_table(entry: Mapping[str, Any]) -> list[str]:
    rows = []
    for fields in entry["numbers"]:
        number = Number(**fields)
        target = ""
        if number.at_least is not None:
            target = f"≥ {show(number.at_least, number.unit)}"
        elif number.at_most is not None:
            target = f"≤ {show(number.at_most, number.unit)}"
        verdict = ("MISSED" if number.missed else "met") if target else ""
        spread = ""
        if number.spread is not None:
            spread = "–".join(show(end, "", number.digits) for end in number.spread)
        found = f"{number.shown} ({number.note})" if number.note else number.shown
        rows.append([number.what, found, spread, target, verdict])
    return table(["question", "found", "turns from–to", "target", ""], rows)


def ahead(entry: Mapping[str, Any]) -> list[str]:
    """Where a peer is ahead, and why."""
    lines = []
    for fields in entry["numbers"]:
        number = Number(**fields)
        if is_behind(number):
            why = number.why or "why is not known"
            lines.append(f"- **{number.peer} is ahead** in “{number.what}”: {why}.")
    return [*lines, ""] if lines else []


def is_behind(number: Number) -> bool:
    return bool(number.peer) and number.unit == "×" and number.value < 1


def front(entries: Mapping[str, Any]) -> list[str]:
    """The table of the front page."""
    rows = []
    for what, place in FRONT:
        script, key = place.split(".")
        numbers = [Number(**fields) for fields in entries.get(script, {}).get("numbers", [])]
        found = next((number.shown for number in numbers if number.key == key), "not measured")
        if numbers and is_old(script, entries[script]):
            found += " †"
        rows.append(f"| {what} | {found} | [{script}](benchmarks/results/{script}.md) |")
    lines = ["| what | result | page |", "|---|---|---|", *rows]
    if any("†" in row for row in rows):
        lines += ["", "† Older than the code: what this number measures has changed since."]
    return lines


def files() -> dict[Path, str]:
    """Every file that is written here, and its text."""
    entries = read_results()
    written = {FOLDER / f"{name}.md": page(name, entry) for name, entry in entries.items()}
    marked = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    numbers = "\n".join([BEGIN, "", *front(entries), "", END])
    written[README] = marked.sub(lambda _: numbers, README.read_text())
    return written


def write() -> None:
    for path, text in files().items():
        path.write_text(text)


if __name__ == "__main__":
    write()
