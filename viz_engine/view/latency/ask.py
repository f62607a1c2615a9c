"""The latency page's boxes: what to sweep, the one button, how far a sweep is.

Try it: `streamlit run app.py`, the page Latency
"""

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from viz_engine.model import files
from viz_engine.model.tokenizer import tokenizer_of
from viz_engine.run import sweep
from viz_engine.run.command import QUESTIONS
from viz_engine.run.events import RunSettings
from viz_engine.run.experiment import ExperimentLog
from viz_engine.run.sweep import KINDS, SweepSettings, values_of
from viz_engine.server.runs import Run
from viz_engine.text import Message, UserError, plain
from viz_engine.view import ask
from viz_engine.view.ask import KEEP
from viz_engine.view.latency import words
from viz_engine.view.latency.shown import Shown
from viz_engine.view.page import Page

BUDGETS = (15, 30, 60, 120, 300, 600)
REPEATS = (1, 2, 3, 5, 8)
state = st.session_state


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAsk:
    """What the boxes hold, and the sweep that they start."""

    page: Page
    shown: Shown
    sections: Sequence[str]  # of the page
    first: dict[str, object]  # what is kept for the session, at first

    # ---- what is chosen ----------------------------------------------------------------------

    def first_values(self) -> None:
        """A new session begins with what its link names."""
        fresh = "lat_what" not in state
        self.page.begin(self.first)
        if "lat_values" not in state:
            fill_values()
        if not fresh:
            return
        query = st.query_params
        if query.get("section") in self.sections:
            state.lat_section = query["section"]
            self.follow_section()
        asked = query.get("sweep", "")
        run = self.shown.sweep_of(asked)
        if run is not None:
            show(run)
        elif asked and asked.removeprefix("recorded-") in KINDS:
            state.lat_what = asked.removeprefix("recorded-")
            fill_values()
        elif asked:
            state.lat_notice = Message(key="lat.unknown_sweep")

    def _follow_what(self) -> None:
        """Whoever is to measure ITL sees ITL, if a sweep is what they look at."""
        fill_values()
        if state.lat_section in KINDS:
            state.lat_section = state.lat_what

    def follow_section(self) -> None:
        """Whoever looks at ITL will measure ITL next."""
        if state.lat_section in KINDS and state.lat_section != state.lat_what:
            state.lat_what = state.lat_section
            fill_values()

    def chosen(self) -> SweepSettings:
        """What the boxes hold. Raises UserError."""
        chosen, language = ask.model_chosen(self.page), self.page.language
        self.page.registry.limits.check_model(chosen["model"])
        folder = files.locate(chosen["model"])
        chat = folder is None or tokenizer_of(folder).has_chat_template
        run = RunSettings(**chosen, prompts=(QUESTIONS[language],), filler=language, chat=chat)
        made = sweep.default_settings(state.lat_what, run)
        return SweepSettings(
            what=made.what,
            run=made.run,
            values=values_of(state.lat_values),
            repeats=state.lat_repeats,
            budget_s=float(state.lat_budget),
        )

    def command(self) -> str:
        """The command that sweeps what the boxes hold, for a POSIX shell."""
        held = ask.model_chosen(self.page).items()
        named = [
            f"--{name} {shlex.quote(value)}" for name, value in held if value != ask.MODEL[name]
        ]
        with contextlib.suppress(UserError):
            named.insert(0, f"--values {','.join(map(str, values_of(state.lat_values)))}")
        effort = f"--repeats {state.lat_repeats} --budget {state.lat_budget}"
        what = f"python -m viz_engine sweep --what {state.lat_what}"
        return " ".join((what, *named, effort, "--json"))

    def _submit(self) -> None:
        """Start a sweep with what the boxes hold. A refusal is a sentence; what was there stays."""
        with self.page.noticing():
            run = self.page.submit(self.chosen())
            state.lat_notice = None
            state.lat_job = run.id
            state.lat_section = run.settings.what

    def _measure(self) -> None:
        """Measure the ceilings of the device that `auto` takes here."""
        registry = self.page.registry
        state.lat_measuring = registry.measure(registry.engine.info().device or "cpu").id

    def _stop(self) -> None:
        self.page.registry.cancel(state.get("lat_job") or "")

    def _open_file(self) -> None:
        """Take a sweep from an uploaded file, or say what is wrong with it."""
        upload = state.lat_upload
        if upload is None:
            return
        run, state.lat_notice = ask.opened(
            upload, lambda one: added(self.page, ask.bytes_of(one)), "sweep.bad_file"
        )
        if run is not None:
            show(run)
            state.lat_section = run.log.settings.what

    def _use_recorded(self) -> None:
        """Forget the visitor's own sweeps on this page."""
        state.lat_jobs = {}

    # ---- the band at the top -----------------------------------------------------------------

    def band(self) -> None:
        """What to measure, left; budget and the one button, right."""
        say = self.page.say
        run = self.shown.sweep_of(state.get("lat_job") or "")
        running = run is not None and not run.finished
        if run is not None and run.finished and state.get("lat_ended") != run.id:
            self._take_ended(run)
        left, right = st.columns([5, 9], gap="small", vertical_alignment="bottom")
        with left:
            self._what()
        with right:
            boxes = st.columns([1, 1, 4.6], gap="small", vertical_alignment="bottom")
            self._effort(*boxes[:2])
            with boxes[2].container(horizontal=True, horizontal_alignment="right", gap="small"):
                with st.popover(say("ask.settings"), icon=":material/tune:"):
                    ask.model(self.page)
                with st.popover(say("lat.more"), icon=":material/folder_open:"):
                    self._files_box()
                if running:
                    name, icon, act = "stop", ":material/stop:", self._stop
                else:
                    name, icon, act = "start", ":material/play_arrow:", self._submit
                text, key = say(f"lat.{name}"), f"lat_{name}"
                st.button(text, key=key, icon=icon, type="primary", on_click=act)
        # Of one height: nothing moves when a sweep begins or ends.
        with st.container(key="lat_row"):
            if running:
                self._under_way()
            elif state.get("lat_measuring"):
                self._measuring()
            else:
                self._planned()

    def _what(self) -> None:
        """What is measured, and at which values."""
        say = self.page.say
        left, right = st.columns([1, 1], gap="small", vertical_alignment="bottom")
        with left:
            ask.segments(
                self.page,
                "what",
                say("lat.what"),
                KINDS,
                lambda what: say(f"lat.what.{what}"),
                on_change=self._follow_what,
                help=say("lat.what_help"),
            )
        right.text_input(
            say(f"lat.values.{state.lat_what}"),
            key="lat_values",
            max_chars=200,
            help=say("lat.values_help"),
            **KEEP,
        )

    def _effort(self, left: DeltaGenerator, right: DeltaGenerator) -> None:
        """How often each value is measured, and for how long at most."""
        say, most = self.page.say, self.page.registry.limits.sweep_s
        left.selectbox(
            say("lat.repeats"), REPEATS, key="lat_repeats", help=say("lat.repeats_help"), **KEEP
        )
        right.selectbox(
            say("lat.budget"),
            [one for one in BUDGETS if one <= most] or [15],
            key="lat_budget",
            format_func=lambda seconds: say("lat.seconds", seconds=seconds),
            help=say("lat.budget_help"),
            **KEEP,
        )

    def _files_box(self) -> None:
        """Open, go back, measure the ceilings."""
        say = self.page.say
        st.file_uploader(
            say("lat.open"),
            type=["jsonl"],
            key="lat_upload",
            on_change=self._open_file,
            help=say("lat.open_help"),
        )
        st.button(
            say("lat.recorded"),
            key="lat_recorded",
            on_click=self._use_recorded,
            width="stretch",
            disabled=not state.lat_jobs,
        )
        st.button(
            say("lat.measure"),
            key="lat_measure",
            on_click=self._measure,
            width="stretch",
            help=say("lat.measure_help"),
            disabled=self.page.registry.measuring is not None,
        )

    # ---- the row under it --------------------------------------------------------------------

    def _planned(self) -> None:
        """What the button would do, or why it would not."""
        with self.page.refusing():
            num, repeats = len(values_of(state.lat_values)), state.lat_repeats
            params = {"num": num, "repeats": repeats, "seconds": state.lat_budget}
            st.caption(self.page.say("lat.planned", runs=num * repeats, **params))

    @st.fragment(run_every=1.0)
    def _under_way(self) -> None:
        """How far the sweep is; the page is drawn again when a run is over."""
        run = self.shown.sweep_of(state.get("lat_job") or "")
        if run is None:
            return
        self.page.registry.seen(run)
        progress = run.log.progress()
        done = progress.num_done
        if run.finished or done != state.get("lat_done", 0):
            state.lat_done = done
            if done:
                self._keep(run)
            st.rerun()
        text = words.progress(run, progress, self.page.say, self.page.language)
        st.progress(min(done / max(progress.num_total, 1), 1.0), text=plain(text))

    def _take_ended(self, run: Run) -> None:
        """Show what a sweep that is over has and why it ended, however the page learned of it."""
        state.lat_ended, state.lat_done = run.id, 0
        ended = run.log
        if ended.runs():
            self._keep(run)
        state.lat_notice = ended.error or (
            Message(key=f"lat.ended.{ended.ended}") if ended.ended != "done" else None
        )

    def _keep(self, run: Run) -> None:
        """The sweep takes the place of the recorded one of its kind; the boxes stay."""
        state.lat_jobs = {**state.lat_jobs, run.log.settings.what: run.id}
        st.query_params["sweep"] = run.id

    @st.fragment(run_every=1.0)
    def _measuring(self) -> None:
        """Until the ceilings are there."""
        run = self.page.registry.get(state.lat_measuring)
        if run is not None and not run.finished:
            st.caption(self.page.say("lat.measuring"))
            return
        state.lat_measuring = None
        state.lat_notice = (run.error if run else None) or Message(key="lat.measured_now")
        st.rerun()


def fill_values() -> None:
    """The usual values of what is measured."""
    state.lat_values = ", ".join(map(str, sweep.VALUES[state.lat_what]))


def show(run: Run) -> None:
    """Show this sweep in place of the recorded one of its kind."""
    what = run.log.settings.what
    state.lat_jobs = {**state.get("lat_jobs", {}), what: run.id}
    state.lat_what = what
    fill_values()


def added(page: Page, data: bytes) -> Run:
    """The sweep in a file, so that it has a link. Raises UserError."""
    log = ExperimentLog.read(data, "sweep")
    if log.settings.what not in KINDS or not any(run.steps for run in log.runs()):
        raise UserError("sweep.bad_file")
    return page.registry.add_log(log, client=page.client)
