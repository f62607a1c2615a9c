"""Which sweeps stand on the latency page: the visitor's own, else those that ship.

Try it: `streamlit run app.py`, the page Latency
"""

from dataclasses import dataclass

import streamlit as st

from viz_engine.analysis import diagnose
from viz_engine.analysis.diagnose import Diagnosis
from viz_engine.run.experiment import ExperimentLog
from viz_engine.run.sweep import KINDS
from viz_engine.server import recorded
from viz_engine.server.runs import Run
from viz_engine.view.page import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The sweeps of a visitor's page: the session's `jobs` names the own one of each kind."""

    page: Page

    def sweep_of(self, run_id: str) -> Run | None:
        """The sweep of that id, of one of the kinds that this page shows."""
        run = self.page.registry.get(run_id)
        shown = run is not None and run.what == "sweep" and run.log.head is not None
        return run if shown and run.log.settings.what in KINDS else None

    def of(self, what: str) -> tuple[ExperimentLog | None, str]:
        """The sweep to show of a kind, and how its times are tagged."""
        run = self.sweep_of(self.page.get("jobs").get(what, ""))
        if run is not None and run.log.runs():
            return run.log, "measured" if run.session_id == self.page.session_id else "recorded"
        return recorded.sweep(what), "recorded"

    def every(self) -> list[ExperimentLog]:
        return [found for what in KINDS if (found := self.of(what)[0]) is not None]

    def alike(self, results: list[ExperimentLog]) -> list[ExperimentLog]:
        """Those of the machine and dtype of the first: others stand under another roof."""

        def machine(result: ExperimentLog) -> tuple[str, ...]:
            started = result.started
            return started.hardware.name, started.hardware.device, started.settings.dtype

        if not results:
            return []
        own = [what for what in KINDS if self.of(what)[1] == "measured"]
        first = self.of(own[0])[0] if own else results[0]
        return [result for result in results if machine(result) == machine(first)]

    def beside(self, result: ExperimentLog) -> list[ExperimentLog]:
        """Those that a finding on `result` rests on: the ones of Three tests where it is among
        them, so that no two sections answer one question differently; else it alone."""
        results = self.alike(self.every())
        return results if any(one is result for one in results) else [result]

    def tag(self, results: list[ExperimentLog]) -> str:
        """How the times of several sweeps are tagged: some may ship, others be made here."""
        tags = {self.of(result.settings.what)[1] for result in results}
        return tags.pop() if len(tags) == 1 else "both"


MAX_FINDINGS = 8  # kept for a visitor


def diagnosis_of(results: list[ExperimentLog]) -> Diagnosis:
    """The findings on all runs of the same machine as the first sweep's, kept for this visitor
    alone: what a file says of itself names nothing that others see."""
    kept = st.session_state.setdefault("lat_findings", [])
    stamp = [(result, len(result.runs())) for result in results]
    for before, found in kept:
        same = len(before) == len(stamp) and all(
            a is b and n == m for (a, n), (b, m) in zip(before, stamp, strict=True)
        )
        if same:
            return found
    kept.append((stamp, _diagnosis(results)))
    del kept[:-MAX_FINDINGS]
    return kept[-1][1]


def _diagnosis(results: list[ExperimentLog]) -> Diagnosis:
    logs = [log for result in results for log in result.runs()]
    ceilings = next((one.ceilings for one in results if one.ceilings), None)
    batch = next((one.runs() for one in results if one.settings.what == "batch"), None)
    return diagnose.diagnose(logs, ceilings, batch)
