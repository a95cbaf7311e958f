"""Are the numbers of the front page those that a benchmark wrote?"""

import re

from .pages import ROOT

README = ROOT / "README.md"
_ROW = re.compile(
    r"^\|[^|]+\| ([\d,.]+ (?:×|ms|s)) \|[^|]*\]\((benchmarks/results/\w+\.md)\)", flags=re.MULTILINE
)


def test_every_number_on_the_front_page_stands_on_the_page_it_names():
    rows = _ROW.findall(README.read_text().partition("## How fast")[2].partition("\n## ")[0])
    assert len(rows) >= 6
    for number, page in rows:
        verdicts = (ROOT / page).read_text()
        assert re.search(rf"\| {re.escape(number)}[ ,(|]", verdicts), (
            f"{page} has no verdict of {number}"
        )
