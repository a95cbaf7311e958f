"""Does the viewer answer only its own page, on this machine, and only read?"""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.cache import Cache
from penstock.extras.view.server import application
from penstock.extras.view.view import Viewer
from tests.extras.view.conftest import TOKEN, Ask, client_of


@pytest.fixture(scope="module")
def client(view: Viewer) -> TestClient:
    return client_of(view)


PATHS = ["/", "/app.js", "/api/overview", "/api/rows", "/api/sample?row=1"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "%00", "é"])
def test_a_wrong_token_is_refused(client: TestClient, path: str, token: str) -> None:
    answer = client.get(f"/{token}{path}")
    assert answer.status_code == 403 and "token" in answer.text and "fox" not in answer.text


@pytest.mark.parametrize("path", PATHS)
def test_the_right_token_is_answered(client: TestClient, path: str) -> None:
    assert client.get(f"/{TOKEN}{path}").status_code == 200


HOSTS = {
    "127.0.0.1": True,
    "127.0.0.1:9999": True,
    "localhost:1": True,
    "[::1]:80": True,
    "": False,
    "evil.example": False,
    "evil.example:8000": False,
    "localhost.evil.example": False,
    "127.0.0.1.evil.example": False,
    "10.0.0.7:8000": False,
    "[2001:db8::1]:80": False,
}


@pytest.mark.parametrize("host", HOSTS)
def test_a_request_that_names_another_host_is_refused(client: TestClient, host: str) -> None:
    answer = client.get(f"/{TOKEN}/api/overview", headers={"host": host})
    assert answer.status_code == (200 if HOSTS[host] else 421), answer.text


def test_a_viewer_for_other_machines_takes_addresses_and_its_own_name(view: Viewer) -> None:
    client = TestClient(application(view, TOKEN, "0.0.0.0"), base_url="http://10.0.0.7:8000")
    assert client.get(f"/{TOKEN}/").status_code == 200
    assert client.get(f"/{TOKEN}/", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/wrong/").status_code == 403


ORIGINS = {
    "http://127.0.0.1:8000": True,
    "null": False,
    "http://evil.example": False,
    "https://127.0.0.1:8000": False,
    "http://127.0.0.1:8001": False,
    "http://localhost:8000": False,
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_request_of_another_page_is_refused(client: TestClient, origin: str) -> None:
    answer = client.get(f"/{TOKEN}/api/overview", headers={"origin": origin})
    assert answer.status_code == (200 if ORIGINS[origin] else 403)


def test_another_site_may_link_here_but_not_load_anything(client: TestClient) -> None:
    for site, mode, status in [
        ("cross-site", "no-cors", 403),
        ("same-site", "cors", 403),
        ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ]:
        answer = client.get(f"/{TOKEN}/", headers={"sec-fetch-site": site, "sec-fetch-mode": mode})
        assert answer.status_code == status, (site, mode)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_viewer_only_reads(client: TestClient, method: str) -> None:
    for path in PATHS:
        assert client.request(method, f"/{TOKEN}{path}").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        *PATHS,
        "/api/none",
        "/none",
        "/../../../etc/passwd",
        "/..%2f..%2fpyproject.toml",
        "/api/rows?first=x",
    ],
)
def test_every_answer_has_the_headers_that_protect_it(client: TestClient, path: str) -> None:
    for url in (f"/{TOKEN}{path}", f"/wrong{path}"):
        answer = client.get(url)
        assert answer.status_code in (200, 400, 403, 404)
        policy = answer.headers["content-security-policy"]
        assert (
            policy.startswith("default-src 'none';")
            and "unsafe" not in policy
            and "http" not in policy
            and "*" not in policy
        )
        assert (
            answer.headers["cache-control"] == "no-store"
            and answer.headers["referrer-policy"] == "no-referrer"
        )
        assert (
            answer.headers["x-content-type-options"] == "nosniff"
            and answer.headers["x-frame-options"] == "DENY"
        )
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert (
            "access-control-allow-origin" not in answer.headers
            and "set-cookie" not in answer.headers
        )


@pytest.mark.parametrize("path", ["//", "/api/", "/api/overview/", "/app.js/", "/media/0/0/"])
def test_an_address_that_does_not_exist_leads_nowhere_else(client: TestClient, path: str) -> None:
    answer = client.get(f"/{TOKEN}{path}", follow_redirects=False)
    assert answer.status_code == 404 and "location" not in answer.headers


def test_no_file_of_the_page_names_another_place(client: TestClient) -> None:
    names = [
        file.name for file in resources.files("penstock.extras.view").joinpath("static").iterdir()
    ]
    assert {"index.html", "app.js", "app.css"} <= set(names)
    for name in names:
        text = client.get(f"/{TOKEN}/{name}").text
        found = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`)]*", text)) - {
            "http://www.w3.org/2000/svg"
        }
        assert found == set(), name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        ), name


def test_what_is_wrong_is_said_in_words(ask: Ask) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"name": "rows", "first": "x"}, "first is 'x', expected a number from 0 on"),
        ({"name": "rows", "length_from": "-3"}, "length_from is '-3', expected a number"),
        (
            {"name": "rows", "source": "third"},
            "unknown dataset 'third', expected one of first, second",
        ),
        ({"name": "rows", "q": "a", "in": "nowhere"}, "cannot search in 'nowhere'"),
        (
            {"name": "rows", "media": "smell"},
            "media is 'smell', expected one of image, video, audio",
        ),
        ({"name": "sample", "row": 10**9}, "record 1,000,000,000 does not exist: there are 250"),
        ({"name": "step", "step": 10**9}, "the run has"),
        ({"name": "run", "epoch": 2}, "epoch 2 does not exist: the run has 2"),
    ]
    for asked, words in wrong:
        assert words in ask(asked.pop("name"), status=400, **asked)["error"]
    assert ask("nothing", status=404) == {"error": "no such page"}


# The command


def start(arguments: list[str], folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "view", "--no-browser", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_the_command_prints_its_url_writes_nothing_and_ends_with_ctrl_c(recipe_path: Path) -> None:
    cache = Cache(recipe_path.parent / "cache")
    before = [
        (entry.name, entry.num_bytes)
        for entry in cache.entries()
        if not entry.name.startswith("leases")
    ]
    process = start([str(recipe_path), "--world-size", "2"], recipe_path.parent)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", line)
        assert found, line + process.communicate()[1]
        url = found[0]
        with urllib.request.urlopen(f"{url}api/overview", timeout=100) as answer:
            overview = json.load(answer)
        assert overview["prepared"] and overview["num_rows"] == 250 and overview["world_size"] == 2
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{url[:-2]}/api/overview", timeout=100)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=100) == 0
    finally:
        process.kill()
        said = process.communicate()[1]
    assert "Traceback" not in said
    assert [
        (entry.name, entry.num_bytes)
        for entry in cache.entries()
        if not entry.name.startswith("leases")
    ] == before


def test_a_port_that_is_taken_and_a_missing_extra_are_errors_with_advice(recipe_path: Path) -> None:
    code = "import sys; sys.modules['starlette'] = None\nfrom penstock.cli.main import run\nsys.exit(run(sys.argv[1:]))"
    missing = subprocess.run(
        [sys.executable, "-c", code, "view", str(recipe_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert missing.returncode == 3 and "pip install 'penstock[view]'" in missing.stderr
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start(
            [str(recipe_path), "--port", str(taken.getsockname()[1])], recipe_path.parent
        )
        _, said = process.communicate(timeout=100)
    assert (
        process.returncode == 3
        and "cannot listen on 127.0.0.1 port" in said
        and "choose another --port" in said
    )
