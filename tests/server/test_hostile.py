"""Visitors who mean harm: sockets that never read, queues filled, runs stopped by strangers."""

import asyncio
import dataclasses
import json
import re
import resource
import socket as sockets
import tracemalloc
from collections.abc import Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from tests.support import fake_engine
from tests.support.fake_engine import until
from tests.support.routes import Server, parse, recorded, serving, watch
from tests.support.world import World
from viz_engine.model import config
from viz_engine.run.log import RunLog
from viz_engine.server import visitors
from viz_engine.server.pieces import PIECE, InPieces
from viz_engine.server.routes import MAX_MESSAGE
from viz_engine.server.runs import Run
from viz_engine.text import UserError

NUM_SOCKETS = 20
MINE, OTHER = "m" * 22, "o" * 22  # secrets of two browsers


@pytest.fixture(scope="module")
def server(starts_a_program: None) -> Iterator[Server]:
    with serving(stall_s=0.5, run_sockets=NUM_SOCKETS, client_sockets=NUM_SOCKETS + 1) as server:
        yield server


def large_log(num_bytes: int) -> RunLog:
    """A finished run whose lines hold so much."""
    log = recorded(steps=200, samples=True)
    text = "x" * (num_bytes // 200)
    events = [
        dataclasses.replace(event, token_texts=((text,),))
        if event.kind == "step_finished" and event.token_ids[0]
        else event
        for event in log
    ]
    return RunLog.of(events)


def never_reads(server: Server, path: str, *headers: str) -> sockets.socket:
    """A connection that asks for `path` and leaves the answer where it is."""
    host, port = server.host.split(":")
    found = sockets.socket()
    found.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    found.connect((host, int(port)))
    lines = [f"GET /api/{path} HTTP/1.1", f"Host: {server.host}", *headers, "", ""]
    found.sendall("\r\n".join(lines).encode())
    return found


UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)


# ---- sockets -------------------------------------------------------------------------------------


def test_answers_that_nobody_reads_hold_a_piece_each(server: Server) -> None:
    run = server.registry.add_log(large_log(30 * 2**20))
    assert run.num_bytes > 25 * 2**20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = [never_reads(server, f"runs/{run.id}/snapshot") for _ in range(NUM_SOCKETS)]
    for one in held:  # each has begun
        assert one.recv(12) == b"HTTP/1.1 200"
    assert httpx.get(server.url("ping"), timeout=60).json() == {"ok": True}
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < run.num_bytes * 2  # one answer at most, never one for each
    for one in held:
        one.close()


def test_sockets_that_nobody_reads_are_let_go_and_the_run_goes_on(server: Server) -> None:
    log = large_log(40 * 2**20)
    run = Run("slow", None, None)
    server.registry._runs[run.id] = run
    held = [never_reads(server, f"runs/{run.id}/ws", *UPGRADE) for _ in range(NUM_SOCKETS)]
    until(lambda: run.num_subscribers == NUM_SOCKETS)
    for event in log:
        run.append_event(event, log.to_line(event))
    until(lambda: run.num_subscribers == 0)
    assert run.log.events == log.events
    for one in held:
        one.close()


class Deaf:
    """A server's socket or answer whose client takes so many messages and no more."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.taken: list[dict] = []
        self.transport = self
        self.aborted = False

    async def send(self, message: dict) -> None:
        if len(self.taken) == self.num:
            await asyncio.Event().wait()
        self.taken.append(message)

    def abort(self) -> None:
        self.aborted = True


async def test_a_client_that_has_stopped_reading_is_dropped() -> None:
    async def app(scope: dict, receive: object, send: object) -> None:
        for _ in range(3):
            await send({"type": "websocket.send", "text": "x"})

    deaf = Deaf(2)
    with pytest.raises(WebSocketDisconnect):
        await InPieces(app, stall_s=0.01)({"type": "websocket"}, None, deaf.send)
    assert deaf.aborted and len(deaf.taken) == 2


async def test_an_answer_goes_in_pieces_until_its_client_stops_reading() -> None:
    body = bytes(range(256)) * (PIECE // 100)

    async def app(scope: dict, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    reads, deaf = Deaf(99), Deaf(2)
    for client in (reads, deaf):
        await InPieces(app, stall_s=0.01)({"type": "http"}, None, client.send)
    pieces = reads.taken[1:]
    assert b"".join(piece["body"] for piece in pieces) == body
    assert max(len(piece["body"]) for piece in pieces) == PIECE
    assert [piece["more_body"] for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    assert deaf.taken == reads.taken[:2]


async def test_a_frame_too_large_for_a_socket_comes_as_a_snapshot(server: Server) -> None:
    run = server.registry.add_log(large_log(2 * MAX_MESSAGE))
    async with server.socket(run.id) as socket:
        assert await watch(socket) == []
    assert socket.close_code == 4413
    async with httpx.AsyncClient() as client:
        answer = await client.get(server.url(f"runs/{run.id}/snapshot"))
    assert parse(answer.text)[1] == run.log.events


async def test_a_run_and_a_client_have_so_many_sockets(server: Server, tmp_path: object) -> None:
    gate = tmp_path / "open"
    one, other = (server.submit(browser=b, at={"2": f"wait:{gate}"}) for b in (MINE, OTHER))
    first = [await server.socket(one.id) for _ in range(NUM_SOCKETS)]
    until(lambda: one.num_subscribers == NUM_SOCKETS)
    async with server.socket(one.id) as socket:  # the run has enough
        assert await watch(socket) == []
    assert socket.close_code == 4429
    second = await server.socket(other.id)
    until(lambda: other.num_subscribers == 1)
    async with server.socket(other.id) as socket:  # the client has enough
        assert await watch(socket) == []
    assert socket.close_code == 4429
    await second.close()
    until(lambda: other.num_subscribers == 0)
    async with server.socket(other.id) as socket:
        until(lambda: other.num_subscribers == 1)
    gate.touch()
    for socket in first:
        await socket.close()
    until(lambda: one.finished and other.finished)


@pytest.mark.parametrize("num_chars", [1, 7, PIECE])
def test_the_pieces_of_a_frame_are_its_text(num_chars: int) -> None:
    run = World().registry.add_log(recorded(steps=30, samples=True))
    frame = run.read(3, "zh")
    pieces = list(frame.pieces(num_chars))
    assert "".join(pieces) == frame.text
    assert max(map(len, pieces)) <= num_chars


# ---- files ---------------------------------------------------------------------------------------


def head_and_steps(num_steps: int) -> tuple[dict, list[str]]:
    """A fake run's first record as JSON, and its further lines."""
    head, *lines = recorded(steps=num_steps).to_jsonl().splitlines()
    return json.loads(head), lines


def file_of(head: dict, lines: list[str]) -> bytes:
    return "\n".join([json.dumps(head), *lines]).encode()


def refusal(data: bytes) -> str:
    with pytest.raises(UserError) as refused:
        RunLog.read(data)
    return refused.value.message.text("en")


def test_a_file_of_too_many_layers_and_steps_is_refused_before_it_is_worked_out() -> None:
    head, lines = head_and_steps(600)
    head["spec"]["layers"] = head["spec"]["layers"][:1] * 2000
    assert "layers × steps" in refusal(file_of(head, lines))
    hidden = [line.replace("step_finished", "step\\u005ffinished") for line in lines]
    assert "layers × steps" in refusal(file_of(head, hidden))
    head["spec"]["layers"] = head["spec"]["layers"][:128]
    assert len(RunLog.read(file_of(head, lines)).steps) == 600


def test_a_record_of_too_many_numbers_is_refused_unread() -> None:
    head, lines = head_and_steps(3)
    head["prompt_token_ids"] = [[1] * 600_000]
    assert "more numbers" in refusal(file_of(head, lines))


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [3] * 20_000},  # a product of 9 000 digits, in each step
        {"shape": [2**53 - 1] * 8},
        {"count": 2**53 - 1, "shape": [2**30]},
    ],
)
def test_weights_that_no_model_has_are_refused(change: dict) -> None:
    head, lines = head_and_steps(3)
    head["spec"]["weights"][1] |= change
    assert "weights are out of bounds" in refusal(file_of(head, lines))


def test_half_a_character_in_a_file_reads_as_a_question_mark() -> None:
    head, lines = head_and_steps(2)
    head["settings"]["prompts"] = ["a\ud83db \U0001f600 \\ud800"]
    head["spec"]["name"] = "\udc00"
    log = RunLog.read(file_of(head, lines))
    assert log.started.settings.prompts == ("a?b \U0001f600 \\ud800",)
    assert log.started.spec.name == "?"
    found = config.read('{"model_type":"\\ud800","n_layer":2,"n_embd":64,"n_head":4,"n_inner":9}')
    assert found.model_type == "?"


def test_a_run_counts_what_it_holds() -> None:
    """Within a third of what Python's own count of allocations grows by."""
    log = recorded(steps=400, samples=True)
    data = log.to_jsonl().encode()
    registry = World().registry
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    run = registry.add_log(RunLog.read(data))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.67 < run.num_bytes / grown < 1.5
    assert run.num_bytes > 3 * len(data)


# ---- whose run -----------------------------------------------------------------------------------


async def test_who_holds_a_link_cannot_stop_the_run(server: Server, tmp_path: object) -> None:
    gate = tmp_path / "open"
    run = server.submit(browser=MINE, at={"2": f"wait:{gate}"})
    url = server.url(f"runs/{run.id}/cancel")
    for cookies in ({}, {visitors.COOKIE: OTHER}, {visitors.COOKIE: ""}, {visitors.COOKIE: run.id}):
        async with httpx.AsyncClient(cookies=cookies) as client:
            answer = await client.post(url)
            assert answer.status_code == 403 and "browser" in answer.json()["error"]
    assert not run.finished
    async with httpx.AsyncClient(cookies={visitors.COOKIE: MINE}) as client:
        assert (await client.post(url)).json() == {"ok": True}
    gate.touch()
    until(lambda: run.finished)
    assert run.log.finished.finish_reason == "cancelled"


def test_no_frame_tells_the_secret_that_stops_a_run() -> None:
    world = World()
    run = world.registry.submit(fake_engine.settings(), "session", browser=MINE, client="client")
    assert not any(word in run.read(0, "en").text for word in (MINE, "session", "client"))


def browser_app() -> TestClient:
    async def page(request: object) -> HTMLResponse:
        return HTMLResponse("page")

    async def script(request: object) -> PlainTextResponse:
        return PlainTextResponse("script")

    routes = [Route("/", page), Route("/script", script)]
    return TestClient(visitors.BrowserCookie(Starlette(routes=routes)))


def test_a_page_gives_a_browser_one_cookie_and_other_files_none() -> None:
    client = browser_app()
    assert "set-cookie" not in client.get("/script").headers
    given = client.get("/").headers["set-cookie"]
    assert re.fullmatch(r"second_token=[\w-]{22}; Path=/; HttpOnly; SameSite=Lax", given)
    assert visitors.browser_of(client.cookies) is not None
    assert "set-cookie" not in client.get("/").headers
    strange = {"Cookie": f"{visitors.COOKIE}=<script>"}
    assert "set-cookie" in browser_app().get("/", headers=strange).headers


@pytest.mark.parametrize(
    "address, client",
    [
        ("9.9.9.9", "9.9.9.9"),
        ("2620:fe:1:2:3:4:5:6", "2620:fe:1:2::/64"),
        ("::ffff:9.9.9.9", "9.9.9.9"),
        ("127.0.0.1", None),
        ("10.0.0.3", None),  # a router's network, a proxy
        ("::1", None),
        ("testclient", None),
        (None, None),
    ],
)
def test_an_address_stands_for_a_client(address: str | None, client: str | None) -> None:
    assert visitors.client_of(address) == client


# ---- the queue -----------------------------------------------------------------------------------


def waiting(world: World) -> list[str]:
    """Whose runs wait, in the order in which they will be made."""
    return [job.run.client for job in world.engine._queue]


def submit(world: World, client: str, session_id: str) -> Run:
    run = world.registry.submit(fake_engine.settings(), session_id, client=client)
    world.engine.check()
    return run


def finish(world: World) -> None:
    """The run that is on ends, and the next one begins."""
    world.registry.cancel(world.engine._current.run.id)
    world.engine.check()


def test_seventeen_sessions_of_one_client_leave_places_for_others() -> None:
    world = World()
    submit(world, "crowd", "first")  # is taken at once
    for number in range(12):
        submit(world, "crowd", f"tab {number}")
    for number in range(4):
        with pytest.raises(UserError) as refused:
            submit(world, "crowd", f"late {number}")
        assert refused.value.message.key == "service.queue_share"
        assert "12 of 16" in refused.value.message.text("en")
    newcomers = [submit(world, f"newcomer {number}", f"new {number}") for number in range(4)]
    assert [run.position for run in newcomers] == [1, 2, 3, 4]  # behind the one that is on
    with pytest.raises(UserError) as refused:
        submit(world, "another", "full")
    assert refused.value.message.key == "service.queue_full"


def test_clients_take_turns_and_each_is_served_as_it_asks() -> None:
    world = World()
    crowd = [submit(world, "crowd", f"tab {number}") for number in range(4)]
    assert waiting(world) == ["crowd"] * 3
    submit(world, "a", "a1")
    submit(world, "b", "b1")
    submit(world, "a", "a2")
    assert waiting(world) == ["a", "b", "crowd", "a", "crowd", "crowd"]
    served = []
    while world.engine._queue:
        finish(world)
        served.append(world.engine._current.run)
    assert [run.client for run in served] == ["a", "b", "crowd", "a", "crowd", "crowd"]
    assert [run for run in served if run.client == "crowd"] == crowd[1:]


def test_who_asks_again_and_again_holds_nobody_up() -> None:
    """As a sweep does: its next member asks when the last has ended."""
    world = World()
    for number in range(4):
        submit(world, "patient", f"tab {number}")
    served = []
    for number in range(6):
        submit(world, "eager", f"again {number}")
        finish(world)
        served.append(world.engine._current.run.client)
    assert served == ["patient", "eager"] * 3 or served == ["eager", "patient"] * 3


def test_the_runs_of_whoever_holds_most_are_forgotten_first() -> None:
    registry = World(kept_runs=4).registry
    quiet = registry.add_log(recorded(), client="quiet")
    loud = [registry.add_log(recorded(), client="loud") for _ in range(10)]
    kept = [run for run in (quiet, *loud) if registry.get(run.id) is not None]
    assert kept == [quiet, *loud[-3:]]
