"""Are all environment variables on their page, and do the pages for agents lead somewhere?"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "environment.md"
OF_SHELLS = {"PENSTOCK_COMPLETE"}  # the page of commands has it: _PENSTOCK_COMPLETE


def test_the_page_lists_the_variables_that_the_code_reads() -> None:
    read = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"PENSTOCK_[A-Z_]+", path.read_text(encoding="utf-8"))
    }
    listed = re.findall(r"^\| `(PENSTOCK_[A-Z_]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(read - OF_SHELLS)


def test_links_of_llms_txt_lead_to_pages() -> None:
    page = ROOT / "docs" / "llms.txt"
    links = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    assert len(links) > 5
    assert [link for link in links if not (page.parent / link).is_file()] == []
