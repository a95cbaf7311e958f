"""Writes docs/promises.md: python -m tests.docs.promises.  No number is typed: each is counted in the tests that it is about."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

from tests.docs.pages import ROOT
from tests.laws.mutants import MUTANTS

PAGE = ROOT / "docs" / "promises.md"
TESTS = ROOT / "tests"
TEMPLATE = Path(__file__).parent / "promises.template.md"


HOSTILE = ("SOURCES", "SYNTAX", "RUNS", "VALUES", "HARMLESS", "ESCAPES")


def counts() -> dict[str, int]:
    """Everything that the page counts, by the name it has there."""
    laws = _examples(TESTS / "laws/test_laws.py")
    templates = len(list((_folder("trl") / "chat_templates").glob("*.jinja")))
    shapes = _size("templates/conversations.py", "SHAPES")
    trainers = _size("extras/trainers/runs.py", "RUNS")
    cuts = _size("laws/test_every_cut.py", "SIZES")
    return {
        "law_worlds": sum(laws.values()),
        "law_1": laws["test_law_1_order_does_not_depend_on_ranks_or_batch_size"],
        "law_2": laws["test_law_2_nothing_is_lost_and_nothing_repeated"],
        "law_3": laws["test_law_3_resume_after_any_cuts_under_any_world"],
        "law_4": laws["test_law_4_number_of_steps_is_exact_and_every_step_can_be_sought"],
        "law_5": laws["test_law_5_tokens_in_are_tokens_out_and_tokens_counted"],
        "mix": laws["test_mixing_keeps_exact_shares_of_what_is_delivered_in_every_block"],
        "changes": sum(_examples(TESTS / "laws/test_changes.py").values()),
        "law_10": _examples(TESTS / "laws/test_mixing.py")[
            "test_law_10_every_tenth_of_an_epoch_is_like_the_whole"
        ],
        "law_11": _number("extras/rl/test_law_11.py", r"examples\((\d+)\), stateful"),
        "law_11_steps": _number("extras/rl/test_law_11.py", r"stateful_step_count=(\d+)"),
        "prompt_kills": _number("extras/rl/test_kills.py", r"KILLS = \d+ if SOAK else (\d+)"),
        "soak": _number("laws/worlds.py", r"count \* (\d+) if SOAK"),
        "packings": _size("laws/worlds.py", "PACKINGS"),
        "tails": _size("laws/worlds.py", "TAILS"),
        "cut_steps": _number("laws/test_every_cut.py", r"cuts < (\d+)"),
        "cut_sizes": cuts,
        "cut_pairs": cuts * cuts,
        "mutants": len(MUTANTS),
        "settings": _size("laws/test_fail_closed.py", "CHANGES"),
        "golden": _size("laws/test_fail_closed.py", "GOLDEN_RECIPES"),
        "templates": templates,
        "hostile": sum(_size("templates/hostile.py", name) for name in HOSTILE),
        "shapes": shapes,
        "renderings": templates * shapes,
        "turns": _number("templates/test_chat_masks.py", r"counted >= (\d+)"),
        "kills": _number("store/test_faults_kill.py", r'"PENSTOCK_KILLS", \d+ if SOAK else (\d+)'),
        "kills_soak": _number("store/test_faults_kill.py", r'"PENSTOCK_KILLS", (\d+) if SOAK'),
        "kills_at_calls": _number(
            "store/test_faults_kill.py", r"STRACED_KILLS = 10\*\*6 if SOAK else (\d+)"
        ),
        "errors": _size("store/test_faults_errno.py", "ERRORS"),
        "error_runs": _number("store/test_faults_errno.py", r"RUNS = 10\*\*6 if SOAK else (\d+)"),
        "builders": {"eight": 8}[
            _word("store/test_many_builders.py", r"def test_(\w+)_builders_of_one_store")
        ],
        "bad_input": sum(_size("sources/test_bad_input.py", f"{part}_CASES") for part in _PARTS),
        "source_shapes": sum(
            _size("contracts/test_sources.py", name)
            for name in ("OF_THE_CORE", "OF_MEDIA", "OF_FORMATS")
        ),
        "trainers": trainers,
        "records": _number("journeys/test_kill_and_resume.py", r"else (\d+)\n"),
        "most": _number("laws/worlds.py", r"most: int = (\d+)"),
    }


_PARTS = ("JSONL", "JSON", "CSV", "TEXT", "COMPRESSED", "COLUMNS")


def _size(file: str, name: str) -> int:
    """How many elements the list, tuple or dict called `name` has as it is written."""
    for node in ast.parse((TESTS / file).read_text(encoding="utf-8")).body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            value = node.value  # type: ignore[union-attr]
            if isinstance(value, ast.Dict):
                return len(value.keys)
            if isinstance(value, ast.List | ast.Tuple):
                return len(value.elts)
    raise LookupError(f"{file} has no list, tuple or dict {name}")


def _number(file: str, pattern: str) -> int:
    return int(_word(file, pattern))


def _word(file: str, pattern: str) -> str:
    found = re.search(pattern, (TESTS / file).read_text(encoding="utf-8"))
    if found is None:
        raise LookupError(f"{file}: nothing like {pattern}")
    return found[1]


def _functions(path: Path) -> list[ast.FunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def _examples(path: Path) -> dict[str, int]:
    """Test → the number in its decorator @examples(n)."""
    made = {}
    for function in _functions(path):
        for mark in function.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "examples":
                made[function.name] = int(ast.literal_eval(mark.args[0]))
    return made


def _folder(package: str) -> Path:
    found = find_spec(package)
    assert found and found.origin, f"{package} is not installed"
    return Path(found.origin).parent


def page() -> str:
    return TEMPLATE.read_text(encoding="utf-8").format(
        **{name: f"{number:,}" for name, number in counts().items()}
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
