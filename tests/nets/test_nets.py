"""Stores, batches and JSON output are what they were.  A difference here is a change of data: see tests/nets/record.py."""

import json
from pathlib import Path

import pytest

from tests.nets.record import RECORDED, differences, record, without_keys


def test_stores_batches_and_command_output_are_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    old, new = json.loads(RECORDED.read_text()), json.loads(json.dumps(record(tmp_path / "nets")))
    if old["versions"] != new["versions"]:  # other engines: other keys, the same tokens
        old, new = without_keys(old), without_keys(new)
    assert differences(old, new) == []
