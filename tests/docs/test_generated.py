"""Are the pages that are made from code up to date?"""

import re

from penstock.cache import Cache

from . import api_page, errors_page, mask_picture, order_picture, promises, walk_picture


def test_the_api_page_says_what_the_code_says() -> None:
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.page(), (
        "run: python -m tests.docs.api_page"
    )


def test_the_promises_count_what_the_tests_do() -> None:
    assert promises.PAGE.read_text(encoding="utf-8") == promises.page(), (
        "run: python -m tests.docs.promises"
    )


def test_the_picture_of_a_mask_is_what_the_code_makes() -> None:
    assert mask_picture.PAGE.read_text(encoding="utf-8") == mask_picture.page(), (
        "run: python -m tests.docs.mask_picture"
    )
    assert mask_picture.picture() in mask_picture.page()


def test_the_picture_of_the_order_is_what_loaders_deliver() -> None:
    assert order_picture.PICTURE.read_text(encoding="utf-8") == order_picture.picture(), (
        "run: python -m tests.docs.order_picture"
    )
    order, delivered = order_picture.deliver()
    assert sorted(order) == sorted(item.record for item in delivered)


def test_the_picture_of_the_walk_is_what_the_package_gives() -> None:
    assert walk_picture.PICTURE.read_text(encoding="utf-8") == walk_picture.picture(), (
        "run: python -m tests.docs.walk_picture"
    )


def test_every_count_is_more_than_none_and_is_used() -> None:
    used = set(re.findall(r"\{(\w+)\}", promises.TEMPLATE.read_text(encoding="utf-8")))
    assert set(promises.counts()) == used
    assert min(promises.counts().values()) > 0


def test_every_promise_names_its_test() -> None:
    rows = [
        line
        for line in promises.page().splitlines()
        if line.startswith("| ") and not line.startswith("| promise")
    ]
    assert len(rows) > 20
    assert [row for row in rows if not re.search(r"\]\(\.\./tests/[\w/]+\.py\)", row)] == []


def test_a_docstring_becomes_a_list_and_keeps_its_blocks() -> None:
    assert api_page._docstring(Cache)  # one of another room
    documented.__doc__ = (
        "What it is.  And more.\n\none: the first.  two: the second\n    goes on.\n"
    )
    assert (
        api_page._docstring(documented)
        == "What it is. And more.\n\n- `one`: the first.\n- `two`: the second\n\n    goes on.\n"
    )


def documented() -> None:
    pass


def test_the_page_of_errors_is_fresh() -> None:
    assert errors_page.PAGE.read_text(encoding="utf-8") == errors_page.page(), (
        "run: python -m tests.docs.errors_page"
    )


def test_each_code_stands_once_on_the_page() -> None:
    headings = re.findall(r"^### (\w+)$", errors_page.page(), flags=re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert {error.code for error in errors_page.classes()} <= {*headings}
