"""The routes of the live view: ping, snapshot, socket and cancel of a run, beside Streamlit's own.

Streamlit checks no Origin on routes that are not its own: `origins` does, and each route once more,
so that none depends on where it is mounted. Nothing here knows what is in a frame (runs) or
who draws it (view).

Try it: `streamlit run app.py`, then `curl localhost:8501/api/runs/<id>/snapshot`
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from secrets import compare_digest

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from viz_engine.server import visitors
from viz_engine.server.origins import same_origin
from viz_engine.server.pieces import PIECE
from viz_engine.server.registry import Registry, registry
from viz_engine.server.runs import Run
from viz_engine.text import UserError, t

# Close codes of the socket. A frame too large for one message is to be fetched as a snapshot, which
# goes in pieces.
UNKNOWN_RUN, BAD_REQUEST, TOO_MUCH, TOO_MANY = 4404, 4400, 4413, 4429
MAX_MESSAGE = 2**18  # characters: a socket that is not read holds so much
MAX_CLIENT_MESSAGES = 100  # the socket sends; a client that talks on and on is closed


def routes(base_path: str = "") -> list[Route | WebSocketRoute]:
    """The routes of the live view, under `server.baseUrlPath` where one is set."""
    base = base_of(base_path)
    run = f"{base}/api/runs/{{run_id}}"
    return [
        Route(f"{base}/api/ping", _ping),
        Route(f"{run}/snapshot", _snapshot),
        Route(f"{run}/cancel", _cancel, methods=["POST"]),
        WebSocketRoute(f"{run}/ws", _socket),
    ]


def base_of(base_path: str) -> str:
    """What stands before every path: nothing, or `server.baseUrlPath` behind one slash."""
    return f"/{base_path.strip('/')}" if base_path.strip("/") else ""


def _language(connection: HTTPConnection) -> str:
    return connection.query_params.get("lang", "en")


def _first(connection: HTTPConnection) -> int | None:
    """The event that the client lacks, or None where it sent no number."""
    text = connection.query_params.get("from", "0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


def _refuse(request: Request, status: int, key: str) -> JSONResponse:
    return JSONResponse({"error": t(key, _language(request))}, status_code=status)


async def _ping(request: Request) -> JSONResponse:
    return JSONResponse({"ok": True}, headers={"Cache-Control": "no-store"})


async def _snapshot(request: Request) -> Response:
    if not same_origin(request):
        return _refuse(request, 403, "service.foreign_origin")
    run = registry().get(request.path_params["run_id"])
    if run is None:
        return _refuse(request, 404, "service.unknown_run")
    first = _first(request)
    if first is None:
        return _refuse(request, 400, "service.bad_from")
    # Compressing 32 000 rows would take longer than sending them on this machine.
    headers = {"Content-Encoding": "identity", "Cache-Control": "no-store"}
    pieces = run.read(first, _language(request)).pieces(PIECE)
    return StreamingResponse(_each(pieces), media_type="application/x-ndjson", headers=headers)


async def _each(pieces: Iterator[str]) -> AsyncIterator[str]:
    """On the event loop: a thread for each piece would cost more than the piece."""
    for piece in pieces:
        yield piece


async def _cancel(request: Request) -> JSONResponse:
    if not same_origin(request):
        return _refuse(request, 403, "service.foreign_origin")
    runs = registry()
    run = runs.get(request.path_params["run_id"])
    if run is None:
        return _refuse(request, 404, "service.unknown_run")
    browser = visitors.browser_of(request.cookies)  # its link is everybody's
    if run.browser is None or browser is None or not compare_digest(run.browser, browser):
        return _refuse(request, 403, "service.not_yours")
    runs.cancel(run.id)
    return JSONResponse({"ok": True})


async def _socket(socket: WebSocket) -> None:
    if not same_origin(socket):
        await socket.close()  # before it is accepted: HTTP 403
        return
    await socket.accept()
    runs = registry()
    run, first = runs.get(socket.path_params["run_id"]), _first(socket)
    try:
        if run is None or first is None:
            code, key = (UNKNOWN_RUN, "unknown_run") if run is None else (BAD_REQUEST, "bad_from")
            await socket.close(code, t(f"service.{key}", _language(socket))[:40])
            return
        await _feed(socket, runs, run, first)
    except (WebSocketDisconnect, RuntimeError, OSError):
        pass  # the client has gone, or the server is going


async def _feed(socket: WebSocket, runs: Registry, run: Run, first: int) -> None:
    """Send frames until the run has ended or the client has gone."""
    loop, wake, language = asyncio.get_running_loop(), asyncio.Event(), _language(socket)
    address = socket.client.host if socket.client else None
    client = visitors.client_of(address) or visitors.browser_of(socket.cookies)
    gone: list[int] = []  # the code to close with, once there is one

    def changed() -> None:
        loop.call_soon_threadsafe(wake.set)

    async def listen() -> None:
        """What a client says is of no interest, how much of it is."""
        for _ in range(MAX_CLIENT_MESSAGES):
            if (await socket.receive())["type"] == "websocket.disconnect":
                gone.append(0)
                break
        else:
            gone.append(BAD_REQUEST)
        wake.set()

    try:
        runs.subscribe(run, changed, client)
    except UserError as error:
        await socket.close(TOO_MANY, error.message.text(language)[:40])
        return
    listener = asyncio.create_task(listen())
    try:
        done = False
        while not done and not gone:
            wake.clear()
            frame = run.read(first, language)
            if frame.is_above(MAX_MESSAGE):
                gone.append(TOO_MUCH)
                break
            await socket.send_text(frame.text)
            first, done = frame.stop, frame.done
            if not done:
                await wake.wait()
        if not gone or gone[0]:
            await socket.close(gone[0] if gone else 1000)
    finally:
        listener.cancel()
        runs.unsubscribe(run, changed, client)
