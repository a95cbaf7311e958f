"""Print how the package reads: tokens per line of code, tokens of the core and of each extra, `Any`, comments, vague names, the walk
of a record, and how many tests look inside a room.

    python -m tests.house.measures

Nothing here is a limit.  A limit on lines was met by packing statements into lines; these numbers are printed by
`make check` next to the aims and the last release, so that a change of direction is seen.
"""

import ast
import io
import json
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tests.house.inner_tests import inner_share

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"

# What the release 0.2.0 had, and what we aim at.
LAST_RELEASE = {
    "tokens per line": 10.8,
    "tokens": 344_633,
    "core": 344_633,
    "any": 27,
    "comments": 209,
    "vague": 1_140,
    "inner tests": 39,
}
AIMS = {"tokens per line": 8.2, "tokens": 285_000, "core": 185_000, "inner tests": 25}

# Names that say where a value came from, not what it is.
VAGUE_NAMES = {"found", "made", "own", "known", "given", "each", "place"}
LAST_WALK = {
    "open": (85, 20),
    "prepare": (604, 62),
    "prepare again": (224, 42),
    "loader": (70, 28),
    "first batch": (161, 27),
    "together": (826, 89),
}
WALK_AIMS = {
    "open": (35, 12),
    "prepare": (380, 42),
    "prepare again": (100, 22),
    "loader": (35, 14),
    "first batch": (90, 17),
    "together": (520, 60),
}

NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


# How dense the code is


def docstring_lines(tree: ast.Module) -> set[int]:
    """Numbers of the lines that belong to docstrings."""
    numbers: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, DOCUMENTED) or ast.get_docstring(node, clean=False) is None:
            continue
        docstring = node.body[0]
        assert docstring.end_lineno is not None
        numbers.update(range(docstring.lineno, docstring.end_lineno + 1))
    return numbers


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def is_packed(node: ast.AST) -> bool:
    """`a, b = x, y`, where nothing on the right needs what is on the left: two statements in one."""
    if not isinstance(node, ast.Assign):
        return False
    target = node.targets[0]
    if not (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)):
        return False
    return not names_in(target) & names_in(node.value)


def measure_file(path: Path) -> Counter[str]:
    """Counts of one module: lines of code and of comments, tokens, functions with `Any`, vague names, packed assignments."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    docstrings = docstring_lines(tree)
    counts: Counter[str] = Counter(files=1)
    code_lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        is_whole_line = token.line.lstrip().startswith("#")
        counts["comments"] += token.type == tokenize.COMMENT and is_whole_line
        if token.type in NOT_CODE or line in docstrings:
            continue
        counts["tokens"] += 1
        code_lines.add(line)
    counts["lines"] = len(code_lines)
    counts["fmt: skip"] = source.count("fmt: skip")
    for node in ast.walk(tree):
        counts["packed"] += is_packed(node)
        is_assigned = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        counts["vague"] += is_assigned and node.id in VAGUE_NAMES
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            returned = ast.unparse(node.returns) if node.returns else ""
            counts["functions"] += 1
            counts["any"] += "Any" in ast.unparse(node.args) + returned
    return counts


def room_of(path: Path) -> str:
    """The folder that a module is counted under: each extra is one, and so is each room of the core."""
    parts = path.relative_to(PACKAGE).parts[:-1]
    return "/".join(parts[:2]) if parts[:1] == ("extras",) else "/".join(parts[:1]) or "."


def measure_package() -> dict[str, Counter[str]]:
    rooms: dict[str, Counter[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        rooms.setdefault(room_of(path), Counter()).update(measure_file(path))
    return rooms


# What a record passes


@dataclass
class Walk:
    """Functions and files of the package that one call passes; given to `sys.setprofile`."""

    functions: set[tuple[str, str]] = field(default_factory=set)
    files: set[str] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        is_function = bool(code.co_flags & 1)  # not the body of a module or class
        if event != "call" or not is_function or not code.co_filename.startswith(f"{PACKAGE}/"):
            return
        if code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"):
            return  # a frame of its own only in some versions of Python
        self.functions.add((code.co_filename, code.co_qualname))
        self.files.add(code.co_filename)


def followed(call: Any) -> tuple[Walk, Any]:
    """Call it, and return what it passed and what it returned."""
    walk = Walk()
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        result = call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return walk, result


def write_tokenizer(folder: Path) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    config = {"eos_token": "<|im_end|>", "chat_template": chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def walk_of_a_record(folder: Path) -> dict[str, Walk]:
    """Follow a small file of chats from `open` to a batch."""
    import penstock as ps

    data = folder / "chat.jsonl"
    with data.open("w") as file:
        for number in range(64):
            question = {"role": "user", "content": f"question {number}"}
            answer = {"role": "assistant", "content": f"answer {number} " * (number % 7 + 1)}
            file.write(json.dumps({"messages": [question, answer]}) + "\n")
    cache = folder / "cache"
    prepare_options: dict[str, Any] = {
        "tokenizer": write_tokenizer(folder / "tokenizer"),
        "cache_dir": cache,
        "num_proc": 1,
        "progress": "none",
    }
    stages = {}
    stages["open"], _ = followed(lambda: ps.open(data, cache_dir=cache)[3])
    stages["prepare"], store = followed(lambda: ps.prepare(data, **prepare_options))
    stages["prepare again"], _ = followed(lambda: ps.prepare(data, **prepare_options))
    stages["loader"], loader = followed(
        lambda: ps.Loader(store, batch_size=2, max_length=512, output="numpy", rank=0, world_size=1)
    )
    batches = iter(loader)
    stages["first batch"], _ = followed(lambda: next(batches))
    together = Walk()
    for walk in stages.values():
        together.functions |= walk.functions
        together.files |= walk.files
    stages["together"] = together
    return stages


# What is printed


def density_table(rooms: dict[str, Counter[str]]) -> list[str]:
    total: Counter[str] = Counter()
    core: Counter[str] = Counter()
    for room, counts in rooms.items():
        total.update(counts)
        if not room.startswith("extras"):
            core.update(counts)
    lines = [
        f"{'':22}{'files':>8}{'code':>9}{'tokens':>10}{'per line':>10}{'Any':>7}{'comments':>10}{'vague':>7}"
    ]
    for room, counts in [*sorted(rooms.items()), ("core", core), ("all", total)]:
        per_line = counts["tokens"] / max(1, counts["lines"])
        share = 100 * counts["any"] / max(1, counts["functions"])
        lines.append(
            f"{room:22}{counts['files']:8,}{counts['lines']:9,}{counts['tokens']:10,}{per_line:10.1f}{share:6.0f}%"
            f"{counts['comments']:10,}{counts['vague']:7,}"
        )
    lines.append(
        f"aims: {AIMS['tokens per line']} tokens per line, core {AIMS['core']:,}, all {AIMS['tokens']:,};"
        f" 0.2.0: {LAST_RELEASE['tokens per line']}, all {LAST_RELEASE['tokens']:,}, Any {LAST_RELEASE['any']}%,"
        f" {LAST_RELEASE['comments']} lines of comments, {LAST_RELEASE['vague']:,} vague names"
    )
    return lines


def walk_table(stages: dict[str, Walk]) -> list[str]:
    lines = [f"{'functions / files':22}{'now':>12}{'aim':>12}{'0.2.0':>12}"]
    for name, walk in stages.items():
        now = f"{len(walk.functions)} / {len(walk.files)}"
        aim = "{} / {}".format(*WALK_AIMS[name])
        before = "{} / {}".format(*LAST_WALK[name])
        lines.append(f"{name:22}{now:>12}{aim:>12}{before:>12}")
    return lines


def tests_line() -> str:
    return (
        f"tests that look inside a room: {inner_share():.1%} (aim: {AIMS['inner tests']}%, 0.2.0: {LAST_RELEASE['inner tests']}%;"
        " python -m tests.house.inner_tests lists them)"
    )


def main() -> None:
    print("\n".join(density_table(measure_package())))
    print(tests_line())
    with tempfile.TemporaryDirectory() as folder:
        stages = walk_of_a_record(Path(folder))
    print()
    print("\n".join(walk_table(stages)))


if __name__ == "__main__":
    main()
