"""The routes on a real server in a thread, with a real engine process whose model is fake; and what
a client makes of frames."""

import contextlib
import json
import sys
import threading
from collections.abc import Iterator

import uvicorn
import websockets
from starlette.applications import Starlette
from starlette.middleware import Middleware
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.support import fake_engine
from tests.support.fake_engine import until
from viz_engine.run.codec import from_line
from viz_engine.run.log import RunLog
from viz_engine.server import registry as server_registry
from viz_engine.server import routes
from viz_engine.server.limits import Limits
from viz_engine.server.pieces import InPieces
from viz_engine.server.registry import Registry
from viz_engine.server.runs import Run
from viz_engine.server.supervisor import Supervisor


def recorded(**script: object) -> RunLog:
    """The log of a fake run."""
    events = fake_engine.generate(
        None,
        fake_engine.settings(**script),
        run_id="recorded",
        queued_ns=0,
        cancelled=lambda: False,
    )
    return RunLog.of(events)


def parse(text: str) -> tuple[dict, list]:
    """A frame as (header, events), taken apart as a client does it."""
    head, *lines = text.split("\n")
    header = json.loads(head)
    assert header["count"] == len(lines)
    return header, [from_line(line) for line in lines]


class Server:
    """The routes on a real server in a thread; the engine process is real, its model fake."""

    def __init__(self, stall_s: float = 60.0, **limits: int) -> None:
        self.registry = Registry(
            Supervisor(fake_engine.spawn()), Limits(**limits), alive=lambda s: True
        )
        server_registry.install(self.registry)
        middleware = [Middleware(InPieces, stall_s=stall_s)]
        app = Starlette(routes=routes.routes(), middleware=middleware)
        config = uvicorn.Config(app, port=0, log_level="error", ws_per_message_deflate=False)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        until(lambda: self.server.started)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.host = f"127.0.0.1:{port}"

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(120)
        self.registry.stop()

    def submit(self, browser: str | None = None, **script: object) -> Run:
        return self.registry.submit(fake_engine.settings(**script), None, browser=browser)

    def url(self, path: str) -> str:
        return f"http://{self.host}/api/{path}"

    def socket(self, run_id: str, first: object = 0, **options: object) -> connect:
        url = f"ws://{self.host}/api/runs/{run_id}/ws?from={first}"
        return connect(url, compression=None, max_size=None, **options)


@contextlib.contextmanager
def serving(**options: object) -> Iterator[Server]:
    """A server, whose registry is that of the process meanwhile."""
    before = sys.modules.pop(server_registry._HOLDER, None)
    server = Server(**options)
    try:
        yield server
    finally:
        server.stop()
        del sys.modules[server_registry._HOLDER]
        if before is not None:
            sys.modules[server_registry._HOLDER] = before


async def watch(socket: websockets.ClientConnection, stop_after: int | None = None) -> list:
    """The events that a socket brings, each frame continuing where the one before ended; up to the
    end of the run, or until `stop_after` of them are there."""
    events = []
    first = None
    with contextlib.suppress(ConnectionClosed):
        async for text in socket:
            header, new = parse(text)
            assert first is None or header["first"] == first
            first = header["first"] + header["count"]
            events += new
            if stop_after is not None and len(events) >= stop_after:
                break
    return events
