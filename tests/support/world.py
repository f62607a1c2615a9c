"""A registry that a test rules: its engine, its clock, its sessions."""

from tests.support import fake_engine
from tests.support.child import Idle
from viz_engine.server.limits import Limits
from viz_engine.server.registry import Registry
from viz_engine.server.runs import Run
from viz_engine.server.supervisor import Supervisor


class World:
    """A registry on an engine that never starts, a clock that moves when told, and sessions that
    are there when told."""

    def __init__(self, **limits: object) -> None:
        self.now = 0.0
        self.sessions: set[str | None] = set()
        self.engine = Supervisor(lambda on_line, on_exit: Idle(), clock=lambda: self.now)
        self.engine.start = self.engine.check  # no thread of its own
        self.registry = Registry(
            self.engine,
            Limits(**limits),
            clock=lambda: self.now,
            alive=lambda session_id: session_id in self.sessions,
        )

    def submit(self, session_id: str = "s") -> Run:
        self.sessions.add(session_id)
        run = self.registry.submit(fake_engine.settings(), session_id)
        self.engine.check()
        return run

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.registry.tick()
