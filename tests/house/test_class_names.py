"""Has every class a name of its own?  Two classes of one name in two rooms are two meanings of one word."""

import ast
from collections import defaultdict
from pathlib import Path

import penstock

ROOT = Path(penstock.__file__).parent


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert twice == {}, "give one of them a name that says what it is"
