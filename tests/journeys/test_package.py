"""Build wheel and sdist, install each into an empty environment, and use it there as a user does."""

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "penstock"


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return folder


def package_files() -> set[str]:
    files = (
        path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    return {path.relative_to(PACKAGE.parent).as_posix() for path in files}


def test_wheel_and_sdist_hold_every_file_of_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    (sdist,) = built.glob("*.tar.gz")
    assert wheel.name == f"penstock-{penstock.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert {name for name in held if ".dist-info/" not in name} == package_files()
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in package_files()} < names and {"README.md", "LICENSE"} < names


@pytest.mark.soak  # pip installs what the package needs; `make demo` does the same with the wheel
def test_installed_in_an_empty_environment_they_go_from_records_to_batches(
    built: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"text": "the quick fox"}\n' * 50)
    for package in (*built.glob("*.whl"), *built.glob("*.tar.gz")):
        install_and_use(package, tokenizer_path, tmp_path)


def install_and_use(package: Path, tokenizer_path: Path, home: Path) -> None:
    python, command = home / "env" / "bin" / "python", home / "env" / "bin" / "penstock"
    run(python, "-m", "pip", "uninstall", "-q", "-y", "penstock", cwd=home)
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", package, cwd=home)
    assert run(command, "--version", cwd=home) == f"penstock {penstock.__version__}\n"
    cache = home / f"cache of {package.name}"
    run(
        command,
        "init",
        "data",
        "--tokenizer",
        tokenizer_path,
        "--cache-dir",
        cache,
        "--force",
        cwd=home,
    )
    run(command, "prepare", "recipe.yaml", "--cache-dir", cache, cwd=home)
    run(command, "report", "recipe.yaml", "--cache-dir", cache, cwd=home)
    script = (
        "import penstock as ps\n"
        f"loader = ps.load('recipe.yaml', output='numpy', rank=0, world_size=1, cache_dir={str(cache)!r})\n"
        "print(sum((batch['labels'] >= 0).sum() for batch in loader) > 0)"
    )
    assert run(python, "-c", script, cwd=home) == "True\n"
