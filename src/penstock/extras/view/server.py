"""Serve the viewer on this machine: every request needs the token in its path, and nothing is written.

    with listening(host, port) as socket: serve(Viewer(…), socket, …)

A request is refused unless it is a GET with the right token, names this machine as its host, and comes from the page itself.  The page
loads only files of this package; its content security policy forbids everything else.
"""

import contextlib
import ipaddress
import json
import logging
import re
import secrets
import socket
import traceback
from collections.abc import Iterator
from importlib import resources
from typing import Any

from penstock.errors import PenstockError
from penstock.extras.view.view import Clip, Viewer

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, RedirectResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise PenstockError(
        "the viewer needs starlette and uvicorn: pip install 'penstock[view]'"
    ) from error

_log = logging.getLogger("penstock")

LOOPBACK = "127.0.0.1"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_CLIP_BYTES = 4 << 20  # of one answer: a player asks for the next part
_MOST_CLIP = 64 << 20  # bytes of an answer that is not a part
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{0,15})")
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def application(view: Viewer, token: str, host: str = LOOPBACK) -> Any:
    """Return the viewer as an ASGI application."""
    files = {}
    for file in resources.files("penstock.extras.view").joinpath("static").iterdir():
        files[file.name] = file.read_bytes()

    def static(request: Request) -> Response:
        name = request.path_params.get("file", "index.html")
        if name not in files:
            return PlainTextResponse("no such page", 404)
        return Response(files[name], media_type=_KINDS[name.rpartition(".")[2]])

    def ask(request: Request) -> Response:
        try:
            if "number" in request.path_params:
                return _part(view.clip(request.path_params), request.headers.get("range", ""))
            made = view.answer(request.path_params["name"], dict(request.query_params))
            return _json(made) if made is not None else _json({"error": "no such page"}, 404)
        except PenstockError as error:
            return _json({"error": str(error)}, 400)
        except Exception as error:
            _log.error(
                "the viewer failed at %s: %s",
                request.url.path.rpartition("/")[2],
                traceback.format_exc(),
            )
            return _json(
                {"error": f"an error of Penstock itself: {type(error).__name__}: {error}"}, 500
            )

    paths = [
        Route("/{token}/api/{name}", ask, methods=["GET"]),
        Route("/{token}/media/{row}/{number}", ask, methods=["GET"]),
        Route("/{token}/{file}", static, methods=["GET"]),
        Route("/{token}/", static, methods=["GET"]),
        Route("/{token}", lambda request: RedirectResponse(f"/{token}/"), methods=["GET"]),
    ]
    inner = Starlette(routes=paths)
    inner.router.redirect_slashes = False
    return _Guard(inner, token, host)


def _json(value: Any, status: int = 200) -> Response:
    # ASCII, so that a lone surrogate of the data is sent as its escape
    return Response(json.dumps(value, allow_nan=False), status, media_type="application/json")


def _part(clip: Clip, wanted: str) -> Response:
    """Return the bytes of a clip that a Range header asks for, or the first of them; all of them without such a header."""
    found = _RANGE.fullmatch(wanted)
    size = clip.num_bytes
    if found is None and size > _MOST_CLIP:
        raise PenstockError(f"the clip has {size:,} bytes; ask for a range of them, as players do")
    start, stop = (0, size) if found is None else (int(found[1]), int(found[2] or size) + 1)
    stop = min(stop, size, start + _CLIP_BYTES) if found else size
    if found and start >= stop:
        return Response(status_code=416, headers={"content-range": f"bytes */{size}"})
    headers = {
        "accept-ranges": "bytes",
        **({"content-range": f"bytes {start}-{stop - 1}/{size}"} if found else {}),
    }
    return Response(clip.read(slice(start, stop)), 206 if found else 200, headers, clip.media_type)


class _Guard:
    """Refuses requests before they reach the application, and adds the headers that protect the page."""

    def __init__(self, inner: Any, token: str, host: str) -> None:
        self._inner = inner
        self._token = token.encode()
        self._host = host

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        answer = self._inner if refusal is None else PlainTextResponse(*refusal)
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Any) -> tuple[str, int] | None:
        """Return why a request is refused, and the status; None if it is not."""
        headers = Headers(scope=scope)
        given = scope["path"].split("/")[1].encode()
        host = headers.get("host", "")
        origin = headers.get("origin")
        if not _is_here(host, self._host):
            return (
                "refused: the request names another host; open the URL that penstock view printed",
                421,
            )
        if origin is not None and origin != f"http://{host}":
            return "refused: the request comes from another page", 403
        if (
            headers.get("sec-fetch-site") in ("cross-site", "same-site")
            and headers.get("sec-fetch-mode") != "navigate"
        ):
            return "refused: the request comes from another page", 403
        if not secrets.compare_digest(given, self._token):
            return (
                "refused: the token in the URL is wrong; open the URL that penstock view printed",
                403,
            )
        if scope["method"] not in ("GET", "HEAD"):
            return "refused: the viewer only reads", 405
        return None


def _is_here(header: str, host: str) -> bool:
    """Return whether a Host header names this server.

    Another name may be anybody's, and lead here only now.  An address cannot; a port may be another one behind a tunnel.
    """
    name = (
        header.rpartition("]")[0].lstrip("[")
        if header.startswith("[")
        else header.partition(":")[0]
    )
    if name in ("localhost", host.lower()):  # browsers write names in small letters
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return not _is_loopback(host) and name == socket.gethostname()
    return address.is_loopback or not _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[tuple[socket.socket, str, str]]:
    """Listen; yield the socket, a new token and the URL.  Port 0 is a free one."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise PenstockError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another --port, or leave it out"
        ) from error
    if not _is_loopback(host):
        _log.warning(
            "%s: other machines can reach the viewer; its URL is the only protection of your data",
            host,
        )
    token = secrets.token_urlsafe(24)
    with listener:
        shown = f"[{host}]" if ":" in host else host
        yield listener, token, f"http://{shown}:{listener.getsockname()[1]}/{token}/"


def serve(view: Viewer, listener: socket.socket, token: str, host: str) -> None:
    """Answer requests until Ctrl-C."""
    config = uvicorn.Config(
        application(view, token, host),
        log_level="error",
        access_log=False,
        lifespan="off",
        server_header=False,
        ws="none",
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after it has stopped
        uvicorn.Server(config).run(sockets=[listener])
