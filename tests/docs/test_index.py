"""Can every page be reached?"""

import re

import yaml

from .pages import PAGES, ROOT, name, prose

INDEX = ROOT / "docs" / "contents.md"


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


def test_a_group_of_the_navigation_has_at_most_seven_pages() -> None:
    """More cannot be looked over; a group of more has two jobs."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    groups = {title: pages for entry in settings["nav"] for title, pages in entry.items()}
    sizes = {title: len(pages) for title, pages in groups.items() if isinstance(pages, list)}
    assert len(sizes) > 3
    assert {title: size for title, size in sizes.items() if size > 7} == {}


# Words that are dated, translated, or a metaphor where the field has a term.
WORDS = re.compile(
    r"\b(whoever|somebody|nobody|mend(s|ed)?|barren|hollow|stitch(es)?|moulds?|palette|dyed?|has no use|is no)\b",
    re.IGNORECASE,
)
# Words that no page says; names and messages of the code may.
PAGE_WORDS = re.compile(
    r"\b(said of|refused by name|becomes? of|became of|been through|spelled out|hand(s|ed)? over|made again"
    r"|(?<!what )(is|are) refused(?! changes| by|\*))\b",
    re.IGNORECASE,
)
FRONTED = re.compile(
    r"(?:^|[.:|] )Of (?!course)[a-z]", re.MULTILINE
)  # "Of litdata, flat items are read"


def test_no_page_and_no_source_has_a_word_that_is_read_twice() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.js")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in [*sources, *(page for page in PAGES if page.name != "history.md")]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for match in [WORDS.search(line)]
        if match is not None
    ]
    assert found == []


def test_no_page_has_a_word_of_the_list() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in PAGES
        for match in [*PAGE_WORDS.finditer(prose(path)), *FRONTED.finditer(prose(path))]
        if "reference/" not in str(path) and path.name != "history.md"
    ]
    assert found == []


def test_a_fronted_topic_is_noticed() -> None:
    assert FRONTED.search("It reads. Of litdata, flat items are read") and FRONTED.search("Of two")
    assert not FRONTED.search("a list. Of course. One of two")


def test_a_heading_can_be_found_by_search() -> None:
    """A heading says what the section is about, also to a reader who sees nothing else of the page."""
    vague = {"Ask it", "A picture", "Your own", "Ids", "Names", "What if", "Numbers", "Use it"}
    found = [
        (name(page), heading)
        for page in PAGES
        for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
        if heading in vague
    ]
    assert found == []
