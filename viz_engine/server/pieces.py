"""What goes out goes in pieces, and nobody who stops reading is waited for.

A server keeps what a client has been sent and not read: of an answer handed over whole, all of it.
In pieces it keeps one, and waits for the client before the next. A client that takes none within
`STALL_S` is dropped. It is for every answer and socket, Streamlit's too.

Try it: `python -m pytest tests/server/test_hostile.py -k "reads or pieces"`
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

PIECE = 2**16  # bytes; as many more may wait in the transport of each socket
STALL_S = 60.0  # a slow line takes a piece in less


class InPieces:
    """The ASGI middleware; the outermost, so that `send` is the server's own."""

    def __init__(self, app: ASGIApp, stall_s: float = STALL_S) -> None:
        self.app = app
        self.stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.app(scope, receive, _Answer(send, self.stall_s))
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(self.stall_s):
                    await send(message)
            except TimeoutError:
                _abort(send)
                raise WebSocketDisconnect(1006) from None

        await self.app(scope, receive, send_in_time)


class _Answer:
    """The `send` of one answer. When the client has stalled nothing more is sent: the server
    closes what was not completed."""

    def __init__(self, send: Send, stall_s: float) -> None:
        self.send = send
        self.stall_s = stall_s
        self.stalled = False

    async def __call__(self, message: Message) -> None:
        body = message.get("body", b"") if message["type"] == "http.response.body" else b""
        if len(body) <= PIECE:
            await self._send(message)
            return
        for start in range(0, len(body), PIECE):
            more = start + PIECE < len(body) or message.get("more_body", False)
            piece = body[start : start + PIECE]
            await self._send({"type": message["type"], "body": piece, "more_body": more})

    async def _send(self, message: Message) -> None:
        if self.stalled:
            return
        try:
            async with asyncio.timeout(self.stall_s):
                await self.send(message)
        except TimeoutError:
            self.stalled = True


def _abort(send: Send) -> None:
    """Drop what a socket was not read: a close would wait for it. ASGI has no word for it, so the
    transport is asked, of a server that has one."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
