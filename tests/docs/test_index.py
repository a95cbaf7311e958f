"""Can every page be reached, and does every room have one?"""

import re

import penstock

from .pages import PAGES, ROOT, name, prose

INDEX = ROOT / "docs" / "index.md"
ROOMS = {"cli": "recipe"}  # one page for these two
WITHOUT_PAGE = {"testing", "extras", "trainers", "rl"}  # extras have a README of their own


def test_the_index_leads_to_every_page() -> None:
    linked = {
        (INDEX.parent / target).resolve()
        for target in re.findall(r"\]\(([\w/.-]+\.md)\)", prose(INDEX))
    }
    missing = [
        name(page)
        for page in PAGES
        if page not in (INDEX, ROOT / "README.md") and page.resolve() not in linked
    ]
    assert missing == []


def test_every_room_has_a_concept_page_that_says_its_question_and_its_cost() -> None:
    rooms = [path.parent.name for path in (ROOT / "src" / penstock.__name__).glob("*/__init__.py")]
    pages = {
        room: ROOT / "docs" / "concepts" / f"{ROOMS.get(room, room)}.md"
        for room in rooms
        if room not in WITHOUT_PAGE
    }
    assert [room for room, page in pages.items() if not page.exists()] == []
