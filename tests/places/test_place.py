"""Do local files and trusted folders keep the contract of a place?"""

from pathlib import Path

import pytest

from penstock.errors import SourceError
from penstock.places.files import open_place
from penstock.places.folder import Folder
from penstock.testing import check_place


def test_local_files_keep_the_contract(tmp_path: Path) -> None:
    place, name = open_place(tmp_path / "new")
    check_place(place, name)


def test_a_trusted_folder_keeps_the_contract(tmp_path: Path) -> None:
    check_place(Folder(tmp_path / "cache"), "new")


@pytest.mark.parametrize("url", ["s3://bucket/a.jsonl", "gs://bucket/a.jsonl", "https://host/a.jsonl", "hf://a/b"])
def test_a_scheme_that_is_not_built_is_refused_with_advice(url: str) -> None:
    with pytest.raises(SourceError, match=rf"{url}: remote paths are not supported yet; copy the files to a local"):
        open_place(url)
