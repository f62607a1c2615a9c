"""The service: what it allows, who sees what of a run, and the routes, over a real server.

Runs come from the real engine process with a fake model (fake_engine.py), from scripted children,
or from logs made here.
"""

import asyncio
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.support import fake_engine
from tests.support.fake_engine import until
from tests.support.routes import Server, parse, recorded, serving, watch
from tests.support.world import World
from viz_engine.model.files import DEFAULT_MODEL
from viz_engine.run import cost
from viz_engine.run.events import RunSettings, RunStarted
from viz_engine.run.log import RunLog
from viz_engine.server import registry as server_registry
from viz_engine.server import routes, visitors, watchdog
from viz_engine.server.limits import Limits
from viz_engine.text import UserError

SETTINGS = fake_engine.settings()


# ---- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, key",
    [
        ({"batch": 17}, "service.batch"),
        ({"batch": 0}, "service.batch"),
        ({"prompts": ("x",) * 17}, "service.batch"),
        ({"new_tokens": 0}, "service.new_tokens"),
        ({"new_tokens": 100_000}, "service.new_tokens"),
        ({"prompts": ("x" * 1_000_000,)}, "service.prompt_size"),
    ],
)
def test_the_server_enforces_its_limits_whatever_the_page_sends(changes: dict, key: str) -> None:
    settings = RunSettings(**{"model": "m", "prompts": ("a",), **changes})
    with pytest.raises(UserError) as refused:
        World().registry.submit(settings, "s")
    assert refused.value.message.key == key
    assert "error.unknown" not in refused.value.message.text("zh")


def test_limits_come_from_the_environment() -> None:
    limits = Limits.from_env({"SECOND_TOKEN_MAX_BATCH": "4", "SECOND_TOKEN_MAX_RUN_S": " 60 "})
    assert limits == Limits(batch=4, run_s=60)
    for wrong in ("0", "many", "-1", "1.5"):
        with pytest.raises(ValueError, match="SECOND_TOKEN_MAX_QUEUE"):
            Limits.from_env({"SECOND_TOKEN_MAX_QUEUE": wrong})


def test_a_hosted_server_offers_listed_models_only() -> None:
    env = {"SECOND_TOKEN_HOSTED": "1", "SECOND_TOKEN_MODELS": "org/one, two"}
    limits = Limits.from_env(env)
    assert limits.models == (DEFAULT_MODEL, "org/one", "two")
    limits.check(RunSettings(model="two", prompts=("a",)))
    with pytest.raises(UserError, match="org/one"):
        limits.check(RunSettings(model="/etc", prompts=("a",)))
    assert Limits.from_env({"SECOND_TOKEN_HOSTED": "0"}).models is None


def test_a_session_has_one_run_at_a_time() -> None:
    world = World()
    run = world.submit()
    with pytest.raises(UserError) as refused:
        world.submit()
    assert refused.value.message.key == "service.one_run"
    world.registry.cancel(run.id)
    world.submit()


def test_the_queue_has_an_end() -> None:
    world = World(queue=2)
    for session_id in "abc":  # one is taken at once, two wait
        world.submit(session_id)
    with pytest.raises(UserError) as refused:
        world.submit("d")
    assert refused.value.message.key == "service.queue_full"


# ---- whose run, and how long -------------------------------------------------------------------


def test_two_visitors_the_second_sees_its_place_and_moves_up() -> None:
    world = World()
    first, second, third = (world.submit(session_id) for session_id in "abc")
    header, events = parse(second.read(0, "en").text)
    assert header["status"]["state"] == "queued" and header["status"]["position"] == 1
    assert "place 1" in header["status"]["text"] and events == []
    assert "第 2 位" in parse(third.read(0, "zh").text)[0]["status"]["text"]
    world.registry.cancel(first.id)
    world.engine.check()
    assert parse(second.read(0, "en").text)[0]["status"]["state"] == "loading"
    assert parse(third.read(0, "en").text)[0]["status"]["position"] == 1


def test_closing_the_tab_stops_the_run_after_the_grace_time() -> None:
    world = World()
    run = world.submit()
    world.sessions.clear()
    world.pass_time(server_registry.GRACE_S)
    assert not run.finished
    world.pass_time(1)
    assert run.finished and run.note.key == "service.unwatched"


@pytest.mark.parametrize("kept_by", ["session", "subscriber"])
def test_a_run_goes_on_while_anyone_is_there(kept_by: str) -> None:
    world = World()
    run = world.submit()
    if kept_by == "subscriber":
        world.sessions.clear()
        world.registry.subscribe(run, print)
    world.pass_time(10 * server_registry.GRACE_S)
    assert not run.finished
    world.sessions.clear()
    world.registry.unsubscribe(run, print)
    world.pass_time(server_registry.GRACE_S)  # counted from the moment that the last one left
    assert not run.finished
    world.pass_time(1)
    assert run.finished


def test_a_queued_run_whose_visitor_left_gives_up_its_place() -> None:
    world = World()
    world.submit("a")
    second, third = world.submit("b"), world.submit("c")
    world.sessions.discard("b")
    world.pass_time(server_registry.GRACE_S + 1)
    assert second.finished and third.position == 1


def test_no_run_lasts_longer_than_the_cap() -> None:
    world = World(run_s=60)
    first, second = world.submit("a"), world.submit("b")
    world.pass_time(1)
    world.pass_time(60)
    assert not first.finished
    world.pass_time(1)
    assert first.note.key == "service.too_long" and not second.finished  # waiting does not count


def test_old_finished_runs_are_forgotten_by_count_and_by_size() -> None:
    world = World(kept_runs=3)
    runs = [world.registry.add_log(recorded()) for _ in range(3)]
    world.registry.get(runs[0].id)  # used again
    world.registry.add_log(recorded())
    assert world.registry.get(runs[1].id) is None
    assert world.registry.get(runs[0].id) is runs[0]
    world = World(kept_mib=1)
    first = world.registry.add_log(recorded(steps=300))
    assert first.num_bytes > 0.5 * 2**20
    last = world.registry.add_log(recorded(steps=300))
    assert world.registry.get(first.id) is None and world.registry.get(last.id) is last


def test_a_run_that_somebody_watches_or_that_is_on_is_kept() -> None:
    world = World(kept_runs=1)
    active, watched = world.submit(), world.registry.add_log(recorded())
    world.registry.subscribe(watched, print)
    for _ in range(3):
        world.registry.add_log(recorded())
    assert world.registry.get(active.id) and world.registry.get(watched.id)


def test_ids_cannot_be_guessed() -> None:
    ids = {World().submit().id for _ in range(20)}
    assert len(ids) == 20 and min(map(len, ids)) >= 20


def test_the_registry_outlives_a_hot_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, server_registry._HOLDER, raising=False)
    before = server_registry.registry()
    monkeypatch.delitem(sys.modules, "viz_engine.server.registry")
    monkeypatch.delattr("viz_engine.server.registry")
    from viz_engine.server import registry as again

    assert again is not server_registry and again.registry() is before


# ---- frames ------------------------------------------------------------------------------------


def test_a_frame_holds_the_lines_of_the_file_from_any_event_on() -> None:
    run = World().registry.add_log(recorded(samples=True))
    lines = run.log.to_jsonl().splitlines()
    for first in range(len(lines) + 1):
        text = run.read(first, "en").text
        header, events = parse(text)
        assert text.split("\n")[1:] == lines[first:] and header["first"] == first
        num_steps = sum(e.kind == "step_finished" for e in events)
        assert len(header["predicted"]) == len(header["columns"]) == num_steps
        assert len(header["sizes"]) == sum(e.kind == "run_started" for e in events)
    assert parse(run.read(999, "en").text)[0]["first"] == len(lines)


def test_each_step_carries_what_it_was_predicted_to_cost() -> None:
    log = recorded(steps=6)
    header, _ = parse(World().registry.add_log(log).read(0, "en").text)
    counted = ("kv_live_bytes", "kv_reserved_bytes", "kv_bytes_read", "kv_bytes_written")
    counted = (*counted, "weight_bytes_read")
    for at, (step, row) in enumerate(zip(log.steps, header["predicted"], strict=True)):
        here, without = log.step_cost(at), log.step_cost(at, cached=False)
        assert row == dataclasses.asdict(here) | {
            "flops": here.linear_flops + here.attention_flops,
            "flops_without_cache": without.flops,
        }
        assert {name: row[name] for name in counted} == {n: getattr(step, n) for n in counted}
    assert header["columns"] == [step.context_len[0] for step in log.steps]
    row_bytes = cost.row_bytes(log.started.spec, "float32")
    assert header["sizes"] == [{"row_bytes": row_bytes, "element_bytes": 4}]


def int8(started: RunStarted) -> RunStarted:
    settings = dataclasses.replace(started.settings, cache="int8:32+32")
    return dataclasses.replace(started, settings=settings)


@pytest.mark.parametrize("other", [lambda one: dataclasses.replace(one, spec=None), int8])
def test_an_unknown_model_or_cache_policy_has_no_sizes_and_no_prediction(other: Callable) -> None:
    log = recorded(steps=3)
    events = [other(log.started), *list(log)[1:]]
    run = World().registry.add_log(RunLog.of(e for e in events if e.kind != "kv_sample"))
    header, _ = parse(run.read(0, "en").text)
    assert header["sizes"] == [None] and header["predicted"] == [None] * len(log.steps)
    assert header["columns"] == [step.context_len[0] for step in log.steps]
    if run.log.started.spec is None:
        assert watchdog.step_limit_s(run.log, 1.0) == watchdog.STEP_FLOOR_S


def test_a_file_with_a_dtype_of_its_own_has_no_prediction() -> None:
    lines = recorded().to_jsonl().replace('"dtype":"float32"', '"dtype":"int3"')
    run = World().registry.add_log(RunLog.read(lines.encode()))
    assert parse(run.read(0, "en").text)[0]["predicted"][0] is None


def test_a_file_that_stops_early_is_shown_as_far_as_it_goes() -> None:
    log = RunLog.of(list(recorded())[:-2])
    header, events = parse(World().registry.add_log(log).read(0, "en").text)
    assert header["status"]["state"] == "finished" and header["error"] is None
    assert "ends before" in header["status"]["text"] and len(events) == len(log)


def test_a_recorded_run_is_added_once() -> None:
    registry = World().registry
    run = registry.add_log(recorded(), run_id="example")
    assert registry.add_log(recorded(), run_id="example") is run is registry.get("example")


# ---- the routes --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(starts_a_program: None) -> Iterator[Server]:
    with serving() as server:
        yield server


async def test_ten_tabs_on_one_run_all_see_every_event(server: Server, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    run = server.submit(steps=120, delay_s=0.005, samples=True, at={"3": f"wait:{gate}"})

    async def tab() -> list:
        async with server.socket(run.id) as socket:
            return await watch(socket)

    tabs = [asyncio.create_task(tab()) for _ in range(10)]
    while run.num_subscribers < 10:
        await asyncio.sleep(0.002)
    gate.touch()
    seen = await asyncio.wait_for(asyncio.gather(*tabs), 120)
    assert all(events == run.log.events for events in seen)
    assert len(run.log.steps) == 120 and seen[0][-1].finish_reason == "length"
    until(lambda: run.num_subscribers == 0)


async def test_leaving_and_coming_back_leaves_no_gap(server: Server, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    run = server.submit(steps=40, at={"10": f"wait:{gate}"})
    async with server.socket(run.id) as socket:
        events = await watch(socket, stop_after=6)
    until(lambda: run.num_subscribers == 0)
    gate.touch()
    until(lambda: run.finished)
    async with server.socket(run.id, first=len(events)) as socket:
        events += await watch(socket)
    assert events == run.log.events


async def test_the_second_visitor_watches_the_queue_move(server: Server) -> None:
    first = server.submit(browser="b" * 22, steps=100, at={"2": "asked"})
    second = server.submit()
    until(lambda: len(first.log.steps) == 2)
    async with server.socket(second.id) as socket:
        header, events = parse(await socket.recv())
        assert header["status"]["position"] == 1 and events == []
        async with httpx.AsyncClient(cookies={visitors.COOKIE: "b" * 22}) as client:
            assert (await client.post(server.url(f"runs/{first.id}/cancel"))).json() == {"ok": True}
        events = await watch(socket)
    assert events == second.log.events and second.error is None
    assert first.log.finished.finish_reason == "cancelled" and len(first.log.steps) == 3


async def test_a_refused_run_says_so_and_the_socket_closes(server: Server) -> None:
    run = server.submit(refuse=True)
    async with server.socket(run.id) as socket:
        texts = [text async for text in socket]
    header, events = parse(texts[-1])
    assert header["status"]["state"] == "finished" and header["error"] and events == []


async def test_the_killed_engine_is_told_on_the_socket(server: Server) -> None:
    run = server.submit(at={"4": "die"})
    async with server.socket(run.id) as socket:
        events = await watch(socket)
    assert "signal 9" in str(events[-1].error) and len(run.log.steps) == 4
    after = server.submit()
    async with server.socket(after.id) as socket:
        assert (await watch(socket))[-1].finish_reason == "length"


async def test_an_unknown_id_is_told(server: Server) -> None:
    async with server.socket("nope") as socket:
        assert await watch(socket) == []
    assert socket.close_code == 4404
    async with httpx.AsyncClient() as client:
        for answer in (
            await client.get(server.url("runs/nope/snapshot?lang=zh")),
            await client.post(server.url("runs/nope/cancel?lang=zh")),
        ):
            assert answer.status_code == 404 and "没有这个运行" in answer.json()["error"]


async def test_a_foreign_page_gets_nothing(server: Server) -> None:
    run = server.registry.add_log(recorded())
    for origin in ("http://evil.example", "null", f"http://{server.host}.evil.example"):
        with pytest.raises(InvalidStatus):
            async with server.socket(run.id, origin=origin):
                pass
        async with httpx.AsyncClient(headers={"Origin": origin}) as client:
            assert (await client.get(server.url(f"runs/{run.id}/snapshot"))).status_code == 403
            assert (await client.post(server.url(f"runs/{run.id}/cancel"))).status_code == 403
    async with server.socket(run.id, origin=f"http://{server.host}") as socket:
        assert await watch(socket) == run.log.events


@pytest.mark.parametrize("message", ["{", "\ud83d", b"\x00\xff", "x" * 3_000_000, "[" * 100_000])
async def test_what_a_client_says_harms_nobody(
    server: Server, tmp_path: Path, message: str | bytes
) -> None:
    gate = tmp_path / "open"
    run = server.submit(at={"2": f"wait:{gate}"})
    if isinstance(message, str):
        message = message.encode("utf-8", "replace").decode()
    async with server.socket(run.id) as socket, server.socket(run.id) as bystander:
        await socket.send(message)
        gate.touch()
        assert await watch(bystander) == run.log.events
        assert await watch(socket) == run.log.events


async def test_a_client_that_talks_on_and_on_is_closed(server: Server, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    run = server.submit(at={"2": f"wait:{gate}"})
    async with server.socket(run.id) as socket:
        for _ in range(routes.MAX_CLIENT_MESSAGES):
            await socket.send("{}")
        await watch(socket)
    assert socket.close_code == 4400
    gate.touch()
    until(lambda: run.finished)


@pytest.mark.parametrize("first", ["-1", "x", "1e3", "9" * 400, "٣"])
async def test_a_cursor_that_is_no_number_is_refused(server: Server, first: str) -> None:
    run = server.registry.add_log(recorded())
    async with server.socket(run.id, first) as socket:
        assert await watch(socket) == []
    assert socket.close_code == 4400
    async with httpx.AsyncClient() as client:
        url = server.url(f"runs/{run.id}/snapshot?from={first}")
        assert (await client.get(url)).status_code == 400


async def test_a_snapshot_is_the_whole_run_uncompressed(server: Server) -> None:
    run = server.registry.add_log(recorded(steps=50, samples=True))
    async with httpx.AsyncClient(headers={"Accept-Encoding": "gzip"}) as client:
        answer = await client.get(server.url(f"runs/{run.id}/snapshot"))
        assert answer.headers["content-encoding"] == "identity"
        assert answer.text == run.read(0, "en").text
        part = await client.get(server.url(f"runs/{run.id}/snapshot?from=7&lang=zh"))
        assert part.text == run.read(7, "zh").text
        assert (await client.get(server.url("ping"))).json() == {"ok": True}


def test_routes_follow_the_base_path() -> None:
    assert {route.path for route in routes.routes("/a/b/")} == {
        "/a/b/api/ping",
        "/a/b/api/runs/{run_id}/snapshot",
        "/a/b/api/runs/{run_id}/cancel",
        "/a/b/api/runs/{run_id}/ws",
    }
    assert routes.routes()[0].path == "/api/ping"


def test_a_session_finds_its_own_finished_runs_and_the_one_it_shows() -> None:
    world = World()
    mine, other, shown = (world.registry.add_log(recorded(steps=2)) for _ in range(3))
    mine.session_id, other.session_id = "me", "somebody else"
    shipped = world.registry.add_log(recorded(steps=2), run_id="recorded-x")
    world.submit("me")  # not finished
    assert world.registry.runs_of("me") == [mine]
    assert world.registry.runs_of("me", shown.id) == [shown, mine]
    assert world.registry.runs_of("me", shipped.id) == [mine]
    assert world.registry.runs_of("me", "no such run") == [mine]
