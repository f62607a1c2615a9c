"""The runs, races and sweeps that ship with the app: a page shows one before anybody presses a
button.

Try it: `python -c "from viz_engine.server import recorded; print(recorded.names('races'))"`
"""

from functools import cache

from viz_engine.paths import ASSETS
from viz_engine.run.experiment import ExperimentLog
from viz_engine.run.log import RunLog
from viz_engine.server import registry as server_registry
from viz_engine.server.runs import Run

FOLDER = ASSETS / "recorded"
CHINESE = "chinese"  # in the name of what a Chinese page shows first
RUN, RACE = "recorded-", "recorded-race-"  # an id begins so


@cache
def names(what: str, language: str = "en") -> list[str]:
    """What ships of "runs", "races" or "sweeps", in the order of their files; on a Chinese page the
    Chinese ones come first."""
    found = sorted(path.stem for path in (FOLDER / what).glob("*.jsonl"))
    return sorted(found, key=lambda name: CHINESE not in name) if language == "zh" else found


def _data(what: str, name: str) -> bytes:
    if name not in names(what):
        raise KeyError(name)
    return (FOLDER / what / f"{name}.jsonl").read_bytes()


def run(registry: server_registry.Registry, name: str) -> Run:
    """A shipped run, put into the registry (again, if it was evicted). Raises KeyError on a name
    that `names("runs")` lacks."""
    run_id = RUN + name
    return registry.get(run_id) or registry.add_log(RunLog.read(_data("runs", name)), run_id=run_id)


def race(registry: server_registry.Registry, name: str) -> Run:
    """A shipped race, alike. Raises KeyError."""
    run_id = RACE + name
    return registry.get(run_id) or registry.add_log(
        ExperimentLog.read(_data("races", name), "race"), run_id=run_id
    )


@cache
def sweep(what: str) -> ExperimentLog | None:
    """The sweep of a kind ("ttft", "itl", "batch") that ships; None where none does."""
    if what not in names("sweeps"):
        return None
    return ExperimentLog.read(_data("sweeps", what), "sweep")
