"""Do local files and trusted folders keep the contract of a place?"""

import re
from pathlib import Path

import pytest

from penstock.errors import SourceError
from penstock.places import open_place
from penstock.places.folder import Folder
from penstock.testing import check_place


def test_local_files_keep_the_contract(tmp_path: Path) -> None:
    place, name = open_place(tmp_path / "new")
    check_place(place, name)


def test_a_trusted_folder_keeps_the_contract(tmp_path: Path) -> None:
    check_place(Folder(tmp_path / "cache"), "new")


@pytest.mark.extra("remote")
@pytest.mark.parametrize("url", ["ftp://host/a.jsonl", "s3+x://bucket/a", "gdrive://a/b"])
def test_a_scheme_that_is_not_built_is_refused_with_advice(url: str) -> None:
    with pytest.raises(
        SourceError,
        match=rf"{re.escape(url)}: unknown kind of place .*expected a local path or one of s3://",
    ):
        open_place(url)
