"""The boxes that several pages share, and the band of those that follow a run or a race.

What a box holds is kept for the session under the box's name after the page's prefix. `Ask` is what
a page that follows a run does: fill its boxes, start and stop a run, open a file, find the run to
show.

Try it: `streamlit run app.py`
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.runtime.uploaded_file_manager import UploadedFile

from viz_engine.model import files
from viz_engine.model.tokenizer import tokenizer_of
from viz_engine.numbers import grouped
from viz_engine.run.events import RunSettings
from viz_engine.run.experiment import ExperimentLog, Settings
from viz_engine.run.files import MAX_FILE_BYTES
from viz_engine.run.log import RunLog
from viz_engine.server import recorded
from viz_engine.server import registry as server_registry
from viz_engine.server.runs import Run
from viz_engine.text import Message, UserError, t
from viz_engine.view.page import Page

KEEP = {"persist_state": "session"}  # the value outlives a visit to another page
DTYPES = ("auto", "bfloat16", "float16", "float32")
MODEL = {"model": files.DEFAULT_MODEL, "device": "auto", "dtype": "auto"}  # at first
IMAGES = ("png", "svg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a page follows."""

    name: str  # also the parameter of the page's address
    folder: str  # of those that ship
    id_prefix: str  # of those that ship
    shipped: Callable[[server_registry.Registry, str], Run]
    read: Callable[[bytes], RunLog | ExperimentLog]

    @property
    def id_key(self) -> str:
        """Where the session keeps which one is shown."""
        return f"{self.name}_id"


RUN = Kind(
    name="run", folder="runs", id_prefix=recorded.RUN, shipped=recorded.run, read=RunLog.read
)
RACE = Kind(
    name="race",
    folder="races",
    id_prefix=recorded.RACE,
    shipped=recorded.race,
    read=lambda data: ExperimentLog.read(data, "race"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The boxes of a page that follows a run or a race."""

    page: Page
    kind: Kind
    texts: str  # how the keys of its texts begin
    presets: Mapping[str, Mapping[str, object]]  # name -> what other boxes hold with its prompt
    preset_key: Callable[[str], str]  # of a preset's text
    sizes: Mapping[str, Sequence[int]]  # the sliders' stops; a context of 0: the prompt as it is
    first: Mapping[str, object]  # what the other boxes hold at first
    kept: Sequence[str]  # fields of RunSettings that boxes hold, but for prompt and sizes
    new_tokens_help: str  # the key of that text

    def said(self, name: str) -> str:
        """A text of runs, or of races."""
        return self.page.say(self.text_key(name))

    def text_key(self, name: str) -> str:
        return f"{self.texts}.{name}"

    # ---- what the boxes hold -----------------------------------------------------------------

    def choose_preset(self) -> None:
        """Put a preset's text and sizes into the boxes."""
        if (name := self.page.get("preset")) is not None:
            prompt = self.page.say(f"{self.preset_key(name)}.prompt")
            self.page.put(prompt=prompt, **self.presets[name])

    def first_values(self, take_link: Callable[[], None]) -> None:
        """The boxes of a new session hold the first preset in its language, then what its link
        names."""
        page = self.page
        page.begin(self.first)
        if page.get("prompt") is None:
            page.put(preset=next(iter(self.presets)))
            self.choose_preset()
            take_link()
        elif (name := page.get("preset")) and (
            before := page.get("preset_language")
        ) != page.language:
            # Its text in the language that was chosen; what the visitor has put there stays.
            key = f"{self.preset_key(name)}.prompt"
            if page.get("prompt") == t(key, before):
                page.put(prompt=page.say(key))
        page.put(preset_language=page.language)

    def take(self, settings: RunSettings) -> None:
        """Whoever comes by a link finds that run's prompt and sizes in the boxes."""
        sizes = {name: getattr(settings, name) or 0 for name in self.sizes}
        known = {name: value for name, value in sizes.items() if value in self.sizes[name]}
        held = {name: getattr(settings, name) for name in self.kept}
        if held["dtype"] not in DTYPES:
            held["dtype"] = "auto"
        self.page.put(preset=None, prompt=settings.prompts[0], **known, **held)

    def chosen(self) -> RunSettings:
        """What the boxes hold, as the settings of a run."""
        held = {name: self.page.get(name) for name in self.kept} | model_chosen(self.page)
        return RunSettings(
            prompts=(self.page.get("prompt"),),
            context_len=self.page.get("context_len") or None,
            new_tokens=self.page.get("new_tokens"),
            filler=self.page.language,
            **held,
        )

    # ---- the run on the page -----------------------------------------------------------------

    def submit(self, chosen: Callable[[], RunSettings | Settings]) -> None:
        """Start a run with what the boxes hold. A refusal is a sentence; what was there stays."""
        page = self.page
        with page.noticing():
            run = page.submit(chosen())
            page.put(notice=None)
            self.show(run.id)

    def stop(self) -> None:
        run = self.page.registry.get(st.session_state[self.kind.id_key] or "")
        if run is not None and run.session_id == self.page.session_id:
            self.page.registry.cancel(run.id)

    def show(self, run_id: str) -> None:
        """Make a run the one on the page, and its link the page's."""
        st.session_state[self.kind.id_key] = run_id
        if st.query_params.get(self.kind.name) != run_id:
            st.query_params[self.kind.name] = run_id

    def open_file(self) -> None:
        """Take a run from an uploaded file, or say what is wrong with it."""
        page = self.page
        if (upload := page.get("upload")) is None:
            return
        run, notice = opened(
            upload,
            lambda one: page.registry.add_log(self.kind.read(bytes_of(one)), client=page.client),
            self.text_key("broken"),
        )
        page.put(notice=notice)
        if run is not None:
            self.show(run.id)

    def current(self, unknown: str) -> Run | None:
        """The run to show: the link's, this session's, or the first that ships. `unknown` is the
        key of what is said where there is no such run."""
        kind, registry = self.kind, self.page.registry
        names = recorded.names(kind.folder, self.page.language)
        run_id = st.query_params.get(kind.name) or st.session_state.get(kind.id_key)
        if run_id and run_id.removeprefix(kind.id_prefix) in names:
            self.show(run_id)
            return kind.shipped(registry, run_id.removeprefix(kind.id_prefix))
        run = registry.get(run_id) if run_id else None
        if run is not None and run.what == kind.name:
            self.show(run_id)
            return run
        if run_id:
            self.page.put(notice=Message(key=unknown))
            st.session_state[self.kind.id_key] = None
            if kind.name in st.query_params:
                del st.query_params[kind.name]
        return kind.shipped(registry, names[0]) if names else None

    def progress(self, run: Run | None) -> tuple[bool, bool]:
        """Whether the run is over, and whether it is this visitor's that goes on. Asked once: it
        may finish while the page is made."""
        if run is None or run.finished:
            return True, False
        reloaded = not server_registry.session_alive(run.session_id)
        if reloaded and run.browser is not None and run.browser == self.page.browser:
            run.session_id = self.page.session_id  # the new tab may stop it
        return False, run.session_id == self.page.session_id

    # ---- the band at the top -----------------------------------------------------------------

    def band(
        self,
        running: bool,
        *,
        height: int,
        third: Callable[[DeltaGenerator], None],
        cost: Callable[[], None],
        boxes: Sequence[tuple[str, str, Callable[[], None]]],
        start: tuple[str, str, str],
        stop: str,
        chosen: Callable[[], RunSettings | Settings],
    ) -> None:
        """Prompt and presets left; sizes (`third` puts the third slider into its place), cost and
        the one button right: `start` is its key, text and icon, `stop` the key of the one that
        stands there while a run goes on. `boxes` are (text, icon, content) of what opens."""
        left, right = st.columns([5, 6], gap="medium")
        with left:
            self._prompt(height)
        with right:
            third(self._sizes())
            cost()
            with st.container(horizontal=True, horizontal_alignment="right", gap="small"):
                for text, icon, box in boxes:
                    with st.popover(self.page.say(text), icon=icon):
                        box()
                if running:
                    text, icon = self.page.say("ask.stop"), ":material/stop:"
                    st.button(text, key=stop, icon=icon, type="primary", on_click=self.stop)
                else:
                    key, text, icon = start
                    st.button(
                        self.page.say(text),
                        key=key,
                        icon=icon,
                        type="primary",
                        on_click=self.submit,
                        args=(chosen,),
                    )

    def _prompt(self, height: int) -> None:
        """`preset` over `prompt`."""
        say = self.page.say
        st.pills(
            say("preset.label"),
            list(self.presets),
            format_func=lambda name: say(self.preset_key(name)),
            key=self.page.key("preset"),
            on_change=self.choose_preset,
            label_visibility="collapsed",
            **KEEP,
        )
        st.text_area(
            say("ask.prompt"),
            key=self.page.key("prompt"),
            height=height,
            help=say("ask.prompt_help"),
            label_visibility="collapsed",
            placeholder=say("ask.prompt_help"),
            **KEEP,
        )

    def _sizes(self) -> DeltaGenerator:
        """`context_len` and `new_tokens` in a row; returns the place of a third slider."""
        say = self.page.say
        one, two, three = st.columns(3, gap="medium")
        one.select_slider(
            say("ask.context"),
            self.sizes["context_len"],
            key=self.page.key("context_len"),
            format_func=lambda n: grouped(n) if n else say("ask.context_as_is"),
            help=say("ask.context_help"),
            **KEEP,
        )
        two.select_slider(
            say("ask.new_tokens"),
            self.sizes["new_tokens"],
            key=self.page.key("new_tokens"),
            help=say(self.new_tokens_help),
            **KEEP,
        )
        return three

    def files_box(self, label: Callable[[str], str]) -> None:
        """A button for each run that ships, called `label` of its name; a file to open."""
        names, id_prefix = recorded.names(self.kind.folder, self.page.language), self.kind.id_prefix
        if names:
            st.caption(self.said("recorded"), help=self.said("recorded_help"))
        for name in names:
            st.button(
                label(name),
                key=f"button-{id_prefix}{name}",
                on_click=self.show,
                args=(f"{id_prefix}{name}",),
                width="stretch",
            )
        st.file_uploader(
            self.said("open"),
            type=["jsonl"],
            key=self.page.key("upload"),
            on_change=self.open_file,
            help=self.said("open_help"),
        )

    def download(self, run: Run) -> None:
        """The button that saves a run's records."""
        jsonl_button(
            self.said("download"), lambda: "".join(line + "\n" for line in run.lines), run.id
        )


# ---- boxes of other pages too ------------------------------------------------------------------


def model(page: Page, *, num_columns: int = 2) -> list[DeltaGenerator]:
    """`model`, under it `device` and `dtype` in the first of `num_columns` columns; returns those
    columns."""
    say, offered = page.say, page.registry.limits.models
    given = {"key": page.key("model"), "help": say("ask.model_help"), **KEEP}
    if offered is None:
        st.text_input(say("ask.model"), **given)
    else:
        st.selectbox(say("ask.model"), offered, **given)
    devices = ["auto", *page.registry.engine.info().devices]
    if page.get("device") not in devices:
        devices.append(page.get("device"))
    columns = st.columns(num_columns)
    columns[0].selectbox(say("ask.device"), devices, key=page.key("device"), **KEEP)
    columns[1].selectbox(
        say("ask.dtype"), DTYPES, key=page.key("dtype"), help=say("ask.dtype_help"), **KEEP
    )
    return columns


def model_chosen(page: Page) -> dict[str, str]:
    """What the boxes of `model` hold: `model`, `device` and `dtype` of a run's settings."""
    held = {name: page.get(name) for name in MODEL}
    return held | {"model": held["model"].strip() or files.DEFAULT_MODEL}


def segments(
    page: Page,
    name: str,
    label: str,
    options: Sequence[str],
    show: Callable[[str], str],
    **more: object,
) -> str:
    """One of a few, as segments side by side; returns the chosen one."""
    return st.segmented_control(
        label, options, required=True, format_func=show, key=page.key(name), **more, **KEEP
    )


def jsonl_button(label: str, data: Callable[[], str], name: str) -> None:
    """The button that saves records, a line each."""
    st.download_button(
        label,
        data=data,
        file_name=f"{name}.jsonl",
        mime="application/x-ndjson",
        icon=":material/download:",
        on_click="ignore",
        width="stretch",
    )


def csv_button(label: str, data: Callable[[], str] | str, name: str, **more: object) -> None:
    """The button that saves a table as second-token-NAME.csv."""
    st.download_button(
        label,
        data=data,
        file_name=f"second-token-{name}.csv",
        mime="text/csv",
        icon=":material/download:",
        on_click="ignore",
        **more,
    )


def bytes_of(upload: UploadedFile) -> bytes:
    """What an opened file holds. Raises UserError where that is too much."""
    if upload.size > MAX_FILE_BYTES:
        most = MAX_FILE_BYTES // 2**20
        raise UserError("error.file_size", size=upload.size // 2**20, most=most)
    return upload.getvalue()


def opened(given: object, read: Callable[..., object], broken: str) -> tuple:
    """What `read` makes of what a visitor gave, all that is done with it included, and None; or
    None and the sentence that says what is wrong with it (`broken` is the text for what `read`
    itself could not say)."""
    try:
        return read(given), None
    except UserError as error:
        return None, error.message
    except Exception:  # whatever a file holds, the page stays
        traceback.print_exc()
        return None, Message(key=broken)


@lru_cache(maxsize=64)
def num_prompt_tokens(folder: Path, text: str, chat: bool, context_len: int | None) -> int:
    """How many tokens a prompt is for the model in a folder. Raises UserError."""
    return len(tokenizer_of(folder).encode_prompt(text, chat=chat, context_len=context_len))
