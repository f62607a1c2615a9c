"""The box in the header of every page: whatever is pasted or dropped opens on the right page.

What it is follows from the text alone; nothing of it runs, and a name is looked up only where the
server may ask. What cannot be read is said in the box, and what was there stays.

Try it: `python -c "from viz_engine.view import paste; print(paste.recognise(b'{}'))"`
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from viz_engine.analysis import timing_lines
from viz_engine.memory import server_log
from viz_engine.model import config, files, hub_config
from viz_engine.run.experiment import ExperimentLog
from viz_engine.run.files import MAX_FILE_BYTES, PAGES, what_is
from viz_engine.run.log import RunLog
from viz_engine.text import Message, UserError
from viz_engine.view.ask import opened
from viz_engine.view.latency import ask as latency_ask
from viz_engine.view.memory.ask import DeploymentAsk
from viz_engine.view.page import Page, warn

HUB = ("https://huggingface.co/", "http://huggingface.co/", "huggingface.co/", "hf.co/")
MAX_NAME_CHARS = 200
MODEL_FILES = (".json", ".safetensors")  # several of them are one model's
state = st.session_state


def recognise(data: bytes) -> str:
    """What a text is: run, race, sweep, config, log, timings or name. Raises UserError where it is
    none of them."""
    if (what := what_is(data)) in PAGES:
        return what
    text = _text(data)
    if text.startswith("{"):
        return "config"
    if _name(text):
        return "name"
    if server_log.holds(text):
        return "log"
    if timing_lines.holds(text):
        return "timings"
    raise UserError("paste.unknown" if text else "paste.empty", start=text[:60])


def _text(data: bytes) -> str:
    return data.decode("utf-8-sig", "replace").strip()


def _name(text: str) -> str | None:
    """A model's name: the default's, one that ships, or a hub id, with or without the hub's
    address before it."""
    if len(text) > MAX_NAME_CHARS or any(one.isspace() for one in text):
        return None
    for address in HUB:
        if text.startswith(address):
            text = "/".join(text.removeprefix(address).split("/")[:2])
    if _shipped(text) or text == files.DEFAULT_MODEL or files.is_hub_id(text):
        return text
    return None


def _shipped(name: str) -> str | None:
    """The key of a model that ships, by its key or by its id on the hub."""
    table = config.preset_table()
    by_id = {shipped.get("repo"): key for key, shipped in table.items()}
    return name if name in table else by_id.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PasteBox:
    """The box, for the visitor of `page`. Its `paste_to` is the page to go to and what its address
    then names."""

    page: Page

    def show(self) -> None:
        """A button that opens the box."""
        say, times = self.page.say, state.get("paste_times", 0)
        with st.popover(say("paste.box"), icon=":material/content_paste_go:", key=f"paste-{times}"):
            st.text_area(
                say("paste.text"),
                key=f"paste_text_{times}",
                height=150,
                placeholder=say("paste.placeholder"),
            )
            st.button(
                say("paste.open"),
                key=f"paste_open_{times}",
                on_click=self._open_text,
                type="primary",
            )
            st.file_uploader(
                say("paste.files"),
                accept_multiple_files=True,
                key=f"paste_files_{times}",
                on_change=self._open_files,
            )
            if notice := state.get("paste_notice"):
                warn(self.page.text(notice))

    def _key(self, name: str) -> str:
        return f"paste_{name}_{state.get('paste_times', 0)}"

    def _open_text(self) -> None:
        text = state.get(self._key("text")) or ""
        self._open({"": text.encode("utf-8", "replace")})

    def _open_files(self) -> None:
        uploads: Sequence[UploadedFile] = state.get(self._key("files")) or ()
        state.paste_notice = None
        if not uploads:
            return
        if sum(file.size for file in uploads) > MAX_FILE_BYTES:
            size, most = sum(file.size for file in uploads) // 2**20, MAX_FILE_BYTES // 2**20
            state.paste_notice = Message(key="error.file_size", params={"size": size, "most": most})
            return
        self._open({file.name: file.getvalue() for file in uploads})

    def _open(self, given: Mapping[str, bytes]) -> None:
        """Put what was given into its page, and make that the page to go to."""
        found, state.paste_notice = opened(given, self._placed, "paste.broken")
        if found is not None:
            state.paste_to = found
            state.paste_times = state.get("paste_times", 0) + 1

    def _placed(self, given: Mapping[str, bytes]) -> tuple[str, dict[str, str]]:
        """The page and its address. Raises UserError."""
        if len(given) > 1:
            if not all(name.endswith(MODEL_FILES) for name in given):
                raise UserError("paste.several")
            return self._config(given, "")
        ((name, data),) = given.items()
        if name.endswith(".safetensors"):
            return self._config(given, "")
        what = recognise(data)
        text = _text(data)
        if what == "config":
            return self._config({name or "config.json": text.encode("utf-8", "replace")}, name)
        if what == "name":
            return self._named(_name(text))
        if what == "log":
            state.mem_log, state.mem_section = text, "log"
            if timing_lines.holds(text):
                state.mem_notice = Message(key="paste.also_timings")
            return "memory", {}
        if what == "timings":
            state.lat_timings = timing_lines.read(text)
            state.lat_section = "definitions"
            return "latency", {"section": "definitions"}
        if what == "sweep":
            run = latency_ask.added(self.page, data)
            latency_ask.show(run)
            state.lat_section = run.log.settings.what
            return "latency", {"sweep": run.id, "section": run.log.settings.what}
        read = RunLog.read if what == "run" else lambda d: ExperimentLog.read(d, what)
        run = self.page.registry.add_log(read(data), client=self.page.client)
        return ("live" if what == "run" else "race"), {what: run.id}

    def _config(self, given: Mapping[str, bytes], name: str) -> tuple[str, dict[str, str]]:
        DeploymentAsk(page=Page(prefix="mem_")).take_own(config.read_files(given, name=name[:80]))
        return "memory", {}

    def _named(self, name: str) -> tuple[str, dict[str, str]]:
        """A model by its name: one that ships needs no other files. A hosted server opens those it
        offers, and asks no hub."""
        if shipped := _shipped(name):
            state.mem_model = shipped
            return "memory", {"model": shipped}
        offered = self.page.registry.limits.models
        if offered is not None and name not in offered:
            raise UserError("paste.name_hosted", offered=", ".join(offered))
        folder = files.locate(name)
        if folder is None and offered is not None:
            raise UserError("paste.name_hosted", offered=", ".join(offered))
        found = hub_config.read_folder(folder) if folder else hub_config.read_files(name)
        return self._config(found, name.rpartition("/")[2])
