"""Do the laws bite?  Each mutant is a small mistake in the plan; the law tests, run against it, must fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

HERE = Path(__file__).parent
PACKAGE = Path(penstock.__file__).parent

# name: (file, right, wrong, the tests that must notice)
LAWS = "test_laws.py"
MUTANTS = {
    "the epoch is not in the shuffle's seed": (
        "shuffle.py",
        'derive(self._seed, "shuffle", self.name, epoch, "shards")',
        'derive(self._seed, "shuffle", self.name, "shards")',
        "test_fail_closed.py",
    ),
    "the epoch is not in any seed": (
        "seeds.py",
        "repr((seed, *path))",
        "repr((seed, *(part for part in path if isinstance(part, str))))",
        LAWS + "::test_every_epoch_has_a_new_order_of_the_same_samples",
    ),
    "seeds are added": (
        "seeds.py",
        "repr((seed, *path))",
        "repr(seed + sum(map(len, map(str, path))))",
        LAWS + "::test_every_epoch_has_a_new_order_of_the_same_samples",
    ),
    "the last block of an epoch is forgotten": (
        "mix.py",
        "if block >= len(borders) - 1:",
        "if block >= len(borders) - 2:",
        LAWS + "::test_law_2_nothing_is_lost_and_nothing_repeated",
    ),
    "an epoch begins at its second block": (
        "plan.py",
        "epoch, number = epoch + 1, 0\n",
        "epoch, number = epoch + 1, 1\n",
        LAWS + "::test_law_2_nothing_is_lost_and_nothing_repeated",
    ),
    "a row is repeated at a block's end": (
        "plan.py",
        "parts.append(rows.slice(row, row + count))",
        "parts.append(rows.slice(max(0, row - (row + count == rows.num_rows)), row + count))",
        LAWS + "::test_law_2_nothing_is_lost_and_nothing_repeated",
    ),
    "the position is off by one row": (
        "plan.py",
        "after = Position(epoch=epoch, block=number, row=row,",
        "after = Position(epoch=epoch, block=number, row=row + (row > 9),",
        LAWS + "::test_law_3_resume_after_any_cuts_under_any_world",
    ),
    "the position counts padding as rows": (
        "plan.py",
        "rows=position.rows + num_rows - missing)",
        "rows=position.rows + num_rows)",
        LAWS + "::test_law_3_resume_after_any_cuts_under_any_world",
    ),
    "every block rounds its shares down by itself": (
        "mix.py",
        "ceil(amount - before), side",
        "max(int(amount - before), 1), side",
        LAWS + "::test_mixing_keeps_exact_shares_of_what_is_delivered_in_every_block",
    ),
    "dropped samples count towards a share of rows": (
        "blocks.py",
        "(tokens > 0).astype(np.int64)",
        "np.ones_like(tokens)",
        LAWS + "::test_mixing_keeps_exact_shares_of_what_is_delivered_in_every_block",
    ),
    "tokens that are dropped count towards a share of tokens": (
        "block.py",
        "    return np.where(lengths > settings.capacity, 0, lengths)",
        "    return lengths.copy()",
        LAWS + "::test_mixing_keeps_exact_shares_of_what_is_delivered_in_every_block",
    ),
    "an epoch of a mixture begins anew": (
        "mix.py",
        "start = epoch * self._epoch_goal() if epoch else Fraction(0)",
        "start = Fraction(0)",
        LAWS + "::test_law_2_nothing_is_lost_and_nothing_repeated",
    ),
    "sources do not count their epochs": (
        "mix.py",
        "epoch * n + (2 * n * border",
        "(2 * n * border",
        "test_fail_closed.py",
    ),
    "pieces without a target are kept": (
        "block.py",
        "    if is_barren is None or not is_barren.any():",
        "    if True:",
        LAWS + "::test_law_2_nothing_is_lost_and_nothing_repeated",
    ),
    "rows of a stream without a target are kept": (
        "block.py",
        "is_barren = _in_rows_without_target(pieces, block, settings, has_target)",
        "is_barren = None",
        LAWS + "::test_law_2_nothing_is_lost_and_nothing_repeated",
    ),
    "pieces without a target vanish uncounted": (
        "block.py",
        'tokens_dropped["nothing_to_train"] = lost + cut_off',
        'tokens_dropped["nothing_to_train"] = lost',
        LAWS + "::test_law_5_tokens_in_are_tokens_out_and_tokens_counted",
    ),
    "windows of one shard": (
        "settings.py",
        "_AUTO_WINDOW = 1024",
        "_AUTO_WINDOW = 1",
        "test_mixing.py::test_law_10_every_tenth_of_an_epoch_is_like_the_whole",
    ),
    "windows grow from one shard": (
        "settings.py",
        "borders = [*range(0, num_shards, size), num_shards]",
        "borders = sorted({0, *(2**n - 1 for n in range(20) if 2**n <= num_shards), num_shards})",
        "test_mixing.py::test_law_10_every_tenth_of_an_epoch_is_like_the_whole",
    ),
    "the rest of a window's shards stays alone": (
        "settings.py",
        "2 * (num_shards - borders[-2]) < size",
        "False",
        "test_mixing.py::test_windows_hold_1024_shards_and_a_small_rest_joins_the_last",
    ),
    "the tail is repeated where it should be padded": (
        "plan.py",
        'if tail == "repeat":',
        'if tail in ("repeat", "pad"):',
        LAWS + "::test_law_3_resume_after_any_cuts_under_any_world",
    ),
    "the tail is dropped where it should be padded": (
        "plan.py",
        'if tail == "drop":',
        'if tail in ("drop", "pad"):',
        LAWS + "::test_law_3_resume_after_any_cuts_under_any_world",
    ),
    "the number of steps is rounded down": (
        "plan.py",
        'steps += full + (rest > 0 and self.settings.tail != "drop")',
        "steps += full",
        LAWS + "::test_law_4_number_of_steps_is_exact_and_every_step_can_be_sought",
    ),
    "ranks take runs that overlap": (
        "shard.py",
        "np.arange(world.rank, step.num_rows, world.size)",
        "np.arange(world.rank, world.rank + step.num_rows // world.size)",
        LAWS + "::test_law_1_order_does_not_depend_on_ranks_or_batch_size",
    ),
    "next fit overfills a row": (
        "pack.py",
        'capacity, side="right") - 1',
        'capacity + 1, side="right") - 1',
        "../plan/test_pack.py",
    ),
    "alignment is forgotten": (
        "settings.py",
        "return lengths if self.align == 1 else",
        "return lengths if True else",
        LAWS + "::test_law_2_nothing_is_lost_and_nothing_repeated",
    ),
    "a split sample loses its rest": (
        "block.py",
        "parts = -(-pieces.stop // capacity)",
        "parts = np.maximum(pieces.stop // capacity, 1)",
        LAWS + "::test_law_2_nothing_is_lost_and_nothing_repeated",
    ),
    "overlong samples vanish uncounted": (
        "block.py",
        'dropped["overlong"] = num_overlong',
        'dropped["overlong"] = 0',
        LAWS + "::test_law_5_tokens_in_are_tokens_out_and_tokens_counted",
    ),
    "best fit hands a group out twice": (
        "pack.py",
        "next_row = first",
        "next_row = max(first - 1, 1)",
        LAWS + "::test_law_2_nothing_is_lost_and_nothing_repeated",
    ),
    "the window's permutation is shorter than the window": (
        "shuffle.py",
        "int(window_ends[window]) - window_start)",
        "max(int(window_ends[window]) - window_start - 1, 1))",
        LAWS + "::test_law_2_nothing_is_lost_and_nothing_repeated",
    ),
    "the permutation loses a digit": (
        "permute.py",
        "        high += low\n",
        "        high += low & ~np.uint64(1)\n",
        "../plan/test_permute.py",
    ),
    "the round function is linear": (
        "permute.py",
        "    word ^= word >> _HALF\n    word *= _MULTIPLY\n    word >>= _HALF\n",
        "    word &= _LOW\n",
        "../plan/test_permute.py",
    ),
    "a setting is not in the fingerprint": (
        "plan.py",
        '**self.settings.as_dict(), "sources"',
        '**{k: v for k, v in self.settings.as_dict().items() if k != "align"}, "sources"',
        "test_fail_closed.py",
    ),
    "a state of another plan is accepted": (
        "plan.py",
        "if fingerprint == self.fingerprint:",
        "if fingerprint[:1] or fingerprint == self.fingerprint:",
        "test_fail_closed.py",
    ),
    "rows are not shuffled": (
        "block.py",
        "    if settings.shuffle:\n",
        "    if settings.shuffle and not num_rows:\n",
        "test_fail_closed.py",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_laws_notice(name, tmp_path):
    file, right, wrong, tests = MUTANTS[name]
    shutil.copytree(PACKAGE, tmp_path / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    source = (tmp_path / "penstock" / "plan" / file).read_text()
    assert right in source, f"{file} no longer reads {right!r}: write this mutant anew"
    (tmp_path / "penstock" / "plan" / file).write_text(source.replace(right, wrong))
    path, colons, test = tests.partition("::")
    target = f"{(HERE / path).resolve()}{colons}{test}"
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "--no-header",
            target,
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PENSTOCK_MUTANT": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 1, f"the tests did not notice that {name}:\n{run.stdout[-2000:]}"
    assert "1 failed" in run.stdout, run.stdout[-2000:]  # in a test, not in collecting them
