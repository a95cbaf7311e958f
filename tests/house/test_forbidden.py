"""What must never stand in the package: code that runs data, and random numbers without a named seed.

A syntax scan, not a grep: names are followed through `import … as` and `from … import`, so renaming hides nothing.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"

PICKLES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
DYNAMIC_IMPORTS = {"__import__", "builtins.__import__", "importlib.import_module"}
RUNS_TEXT = {"eval", "exec", "builtins.eval", "builtins.exec", "os.system", "os.popen", "pty.spawn"}
RUNS_YAML = {
    f"yaml.{how}{what}" for how in ("", "unsafe_", "full_") for what in ("load", "load_all")
}
UNPICKLES = {
    "pandas.read_pickle",
    "torch.save",
}  # torch.save writes a pickle; what is on disk is never one

BIT_GENERATORS = {
    f"numpy.random.{name}"
    for name in ("Philox", "PCG64", "PCG64DXSM", "SFC64", "MT19937", "SeedSequence")
}
NAMED_CHANCE = BIT_GENERATORS | {
    "numpy.random.Generator",
    "numpy.random.BitGenerator",
    "random.Random",
}
NEED_A_SEED = BIT_GENERATORS | {
    "random.Random",
    "numpy.random.Generator",
}  # without arguments they ask the machine
TORCH_CHANCE = {
    *(
        "torch.manual_seed",
        "torch.seed",
        "torch.rand",
        "torch.randn",
        "torch.randint",
        "torch.randperm",
    ),
    *(
        "torch.normal",
        "torch.bernoulli",
        "torch.multinomial",
        "torch.cuda.manual_seed",
        "torch.cuda.manual_seed_all",
    ),
}


class Scan(ast.NodeVisitor):
    """Collects offences of one file as (line, reason)."""

    def __init__(self, tree: ast.Module) -> None:
        self.offences: list[tuple[int, str]] = []
        self.names: dict[str, str] = {}  # local name → dotted name of what was imported
        for node in ast.walk(tree):  # first pass: an import may stand below its use
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self.names[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        self.visit(tree)

    def blame(self, node: ast.stmt | ast.expr, reason: str) -> None:
        self.offences.append((node.lineno, reason))

    def dotted(self, node: ast.AST) -> str:
        """`np.random.shuffle` → "numpy.random.shuffle"; "" for what hangs on a value instead of a name."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (base := self.dotted(node.value)):
            return f"{base}.{node.attr}"
        return ""

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.module(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.module(node, node.module or "")
        for alias in node.names:
            self.name(node, f"{node.module}.{alias.name}")

    def module(self, node: ast.stmt | ast.expr, dotted: str) -> None:
        if dotted.partition(".")[0] in PICKLES:
            self.blame(node, f"{dotted}: loading it can run code")

    def name(self, node: ast.stmt | ast.expr, dotted: str) -> None:
        """A name that is wrong wherever it stands, called or handed on."""
        if dotted in RUNS_TEXT:
            self.blame(node, f"{dotted}: runs text")
        elif dotted in RUNS_YAML:
            self.blame(node, f"{dotted}: use yaml.safe_load")
        elif dotted in UNPICKLES:
            self.blame(node, f"{dotted}: loading it can run code")
        elif dotted in TORCH_CHANCE:
            self.blame(node, f"{dotted}: global random state")
        elif dotted.startswith(("random.", "numpy.random.")):
            named = any(dotted == name or dotted.startswith(f"{name}.") for name in NAMED_CHANCE)
            if not named:
                self.blame(node, f"{dotted}: global or unnamed random state")

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):  # `eval: ...` is a key of a TypedDict
            self.name(node, self.dotted(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        dotted = self.dotted(node)
        self.name(node, dotted)
        if not dotted:  # a method of some value: look inside
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = self.dotted(node.func)
        options = {keyword.arg: keyword.value for keyword in node.keywords}
        if called in DYNAMIC_IMPORTS and node.args and isinstance(node.args[0], ast.Constant):
            self.module(node, str(node.args[0].value))
        if called in NEED_A_SEED and not node.args and not node.keywords:
            self.blame(node, f"{called}(): seeded by the machine")
        if called == "torch.load" and not is_constant(options.get("weights_only"), True):
            self.blame(node, "torch.load without weights_only=True")
        for option in ("allow_pickle", "shell"):
            if option in options and not is_constant(options[option], False):
                self.blame(node, f"{option}= must be False")
        self.generic_visit(node)


def is_constant(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def offences(source: str) -> list[tuple[int, str]]:
    return Scan(ast.parse(source)).offences


def test_the_package_runs_no_data_and_names_its_chance() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    found = [
        f"{file.relative_to(PACKAGE)}:{line}: {why}"
        for file in files
        for line, why in offences(file.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "snippet",
    [
        "import pickle",
        "import pickle as innocent",
        "from marshal import loads",
        "import shelve",
        "import dill",
        "def f():\n    from cloudpickle import dumps",
        "__import__('pickle')",
        "import importlib\nimportlib.import_module('pickle')",
        "import pandas as pd\npd.read_pickle(path)",
        "eval('1')",
        "apply(exec, text)",
        "import builtins\nbuiltins.eval('1')",
        "from builtins import exec as run",
        "import os\nos.system('ls')",
        "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)",
        "from yaml import load",
        "import yaml as y\ny.unsafe_load(text)",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import torch\ntorch.load(path, weights_only=trusted)",
        "from torch import load as read\nread(path)",
        "import torch\ntorch.save(state, path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=trusted)",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import numpy as np\nnp.random.shuffle(x)",
        "import numpy as np\nnp.random.seed(0)",
        "import numpy as np\nnp.random.default_rng()",
        "import numpy as np\nnp.random.default_rng(0)",  # which bit generator that is, is numpy's to change
        "import numpy.random as npr\nnpr.rand(3)",
        "from numpy import random\nrandom.rand(3)",
        "from numpy.random import permutation",
        "import numpy as np\nnp.random.Generator(np.random.PCG64())",
        "import random\nrandom.shuffle(x)",
        "import random as r\nx = sorted(y, key=r.random)",
        "from random import choice",
        "import random\nrandom.Random().shuffle(x)",
        "import random\nrandom.SystemRandom().shuffle(x)",
        "import torch\ntorch.manual_seed(0)",
    ],
)
def test_the_scan_bites(snippet: str) -> None:
    found = offences(snippet)
    assert found
    assert all(1 <= line <= len(snippet.splitlines()) for line, _ in found)


@pytest.mark.parametrize(
    "snippet",
    [
        "import numpy as np\nnp.random.Generator(np.random.Philox(key=seed)).permutation(5)",
        "from numpy.random import PCG64, Generator\nGenerator(PCG64(7)).random()",
        "import random\nrandom.Random(7).shuffle(x)",
        "model.eval()\nself.random.shuffle(x)\nself.load(text)",
        "import yaml\nyaml.safe_load(text)",
        "import torch\ntorch.load(path, weights_only=True)",
        "import numpy as np\nnp.load(path, mmap_mode='r', allow_pickle=False)",
        "import subprocess\nsubprocess.run(['ls'])",
        "import importlib\nimportlib.import_module('json')",
        "'import pickle; eval(1)'  # np.random.seed(0)",
    ],
)
def test_the_scan_lets_honest_code_pass(snippet: str) -> None:
    assert offences(snippet) == []
