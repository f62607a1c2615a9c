"""The memory page's boxes: a model, its devices, how it is kept and served.

Try it: `streamlit run app.py`, the page Memory
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from viz_engine.memory import deployment, devices, estimate, lengths
from viz_engine.memory import link as memory_link
from viz_engine.memory.capacity import Workload
from viz_engine.memory.deployment import Settings
from viz_engine.memory.estimate import Choice
from viz_engine.model import config, formats, hub_config
from viz_engine.model.config import ModelConfig
from viz_engine.run import ceilings, machine
from viz_engine.text import Message, UserError
from viz_engine.view.ask import KEEP
from viz_engine.view.memory import frames, words
from viz_engine.view.page import Page

SAME = "same"  # V in the format of K
OWN = "\0own"  # the model of the visitor's own config.json, in the list of names
MAX_PINNED = 3
MAX_UPLOAD_MB = 4  # what config_keys.MAX_CHARS lets through
FIRST_MODEL = "llama-3.1-8b"
FIRST = {
    "model": FIRST_MODEL,
    "context": 8192,
    "sequences": 16,
    "weights": "auto",
    "k": "auto",
    "v": SAME,
    "engine": "vllm",
    "tp": 1,
    "pp": 1,
    "gpu": "NVIDIA H100 80 GB SXM",
    "count": 1,
    "parameters": None,
    "cross": None,
    "section": "curves",
    "image": "png",
    "prompt_len": 2048,
    "output_len": 512,
    "think": 30.0,
    "rate": 1.0,
    "lengths": "averages",
    "price": None,
    "price_unit": "",
    "block": None,
    "batched": None,
    "utilization": None,
    "drafts": 0,
    "prefixes": False,
    "unified": False,
}
SPREAD = 4.0  # times the median: the 90th percentile of a made spread
LENGTHS = ("averages", "spread", "own")
ONLY = {"prefixes": "vllm", "unified": "llama.cpp"}  # options that one engine has
FIELDS = {  # of Settings -> key in the session
    "context_len": "mem_context",
    "num_sequences": "mem_sequences",
    "kv_format": "mem_k",
    "v_format": "mem_v",
    "weight_format": "mem_weights",
    "tp": "mem_tp",
    "pp": "mem_pp",
    "engine": "mem_engine",
    "block_len": "mem_block",
    "batched_tokens": "mem_batched",
    "utilization": "mem_utilization",
    "num_draft_tokens": "mem_drafts",
}
OPTIONS = {
    "mem_k": ("auto", *formats.CACHES_LISTED),
    "mem_v": (SAME, *formats.CACHES_LISTED),
    "mem_weights": ("auto", *formats.WEIGHTS),
    "mem_tp": (1, 2, 4, 8, 16, 32),
    "mem_pp": (1, 2, 4, 8, 16),
    "mem_engine": deployment.ENGINES,
    "mem_count": estimate.GPU_COUNTS,
}
state = st.session_state


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentAsk:
    """What the boxes hold: a deployment to size. `mem_pinned` are choices that stay beside it."""

    page: Page

    # ---- what is chosen ----------------------------------------------------------------------

    def first_values(self) -> None:
        """A new session begins with an example, or with what its link names."""
        fresh = "mem_model" not in state
        self.page.begin(FIRST | {"pinned": [], "moves": 0})
        if fresh and any(name in st.query_params for name in memory_link.NAMES):
            self._take_link()

    def _take_link(self) -> None:
        """Take what a link names; say what it names that is not known."""
        keys = {key: FIELDS[name] for key, name in memory_link.LINK.items()}
        keys |= {"model": "mem_model", "gpu": "mem_gpu", "n": "mem_count"}
        offered = {key: OPTIONS[name] for key, name in keys.items() if name in OPTIONS}
        offered |= {"model": tuple(config.preset_table()), "gpu": device_names()}
        found, wrong = memory_link.from_query(dict(st.query_params), offered)
        keys |= {"prefix": "mem_prefixes", "kvu": "mem_unified"}
        keys |= {"prompt": "mem_prompt_len", "new": "mem_output_len", "think": "mem_think"}
        for key, value in found.items():
            state[keys[key]] = value
        if wrong:
            state.mem_notice = Message(key="mem.error_link", params={"names": ", ".join(wrong)})

    def model(self) -> tuple[str, ModelConfig]:
        """The chosen model and its name. Raises UserError."""
        if state.mem_model == OWN:
            return state.mem_own
        model = config.preset(state.mem_model)
        return model.name, model

    def choice(self) -> Choice:
        """What the boxes hold. Raises UserError."""
        fields = {name: state[key] for name, key in FIELDS.items()}
        if fields["v_format"] == SAME or state.mem_engine not in deployment.APART:
            fields["v_format"] = None
        fields["state_blocks"] = 2 if self._on("prefixes") else 1
        fields["unified"] = self._on("unified")
        _, model = self.model()
        if model.num_parameters is None and state.mem_parameters:
            fields["num_parameters"] = int(state.mem_parameters * 1e9)
        if lacks_cross_len(model):
            fields["cross_len"] = state.mem_cross
        found = Choice(
            model=model,
            settings=Settings(**fields),
            device=devices.device(state.mem_gpu) if state.mem_gpu else here(),
            num_devices=state.mem_count,
            load=Workload(lengths=self.lengths(), think_s=float(state.mem_think)),
        )
        estimate.check(found)
        return found

    def _on(self, name: str) -> bool:
        """Whether an option is chosen that the engine has."""
        return bool(state[f"mem_{name}"]) and state.mem_engine == ONLY[name]

    def lengths(self) -> lengths.Lengths:
        """How long the requests are that the boxes describe."""
        prompt, output = state.mem_prompt_len, state.mem_output_len
        if state.mem_lengths == "own" and state.get("mem_pairs") is not None:
            return state.mem_pairs
        if state.mem_lengths == "spread":
            return lengths.spread(prompt, output, SPREAD)
        return lengths.averages(prompt, output)

    def read_pairs(self) -> None:
        """Take the visitor's own pairs. A refusal is a sentence; what was there stays."""
        if (upload := state.mem_pairs_file) is None:
            return
        with self.page.noticing():
            state.mem_pairs = lengths.read(upload.getvalue())
            state.mem_notice = None

    def _take_own(self, files: Mapping[str, bytes], name: str) -> None:
        """Make a config.json of the visitor's, with what lies beside it, the chosen model. A
        refusal is a sentence; what was there stays."""
        try:
            model = config.read_files(files, name=name)
        except UserError as error:
            params = {"why": error.message, "model": self._model_name(state.mem_model)}
            state.mem_notice = Message(key="mem.refused", params=params)
            return
        self.take_own(model)

    def take_own(self, model: ModelConfig) -> None:
        """Make a model of the visitor's own the chosen one."""
        state.mem_own = (model.name, model)
        state.mem_model = OWN
        state.mem_notice = None
        state.mem_num_read = state.get("mem_num_read", 0) + 1

    def _read_pasted(self) -> None:
        self._take_own({"config.json": state.mem_paste.encode("utf-8", "replace")}, "")

    def _read_upload(self) -> None:
        files = {file.name: file.getvalue() for file in state.mem_upload or ()}
        if files:
            self._take_own(files, next(iter(files))[:80] if len(files) == 1 else "")

    def _read_named(self) -> None:
        with self.page.noticing():
            if self.page.registry.limits.models is not None:
                raise UserError("mem.error_hosted")
            files = hub_config.read_files(state.mem_where)
            self._take_own(files, Path(state.mem_where.strip()).name[:80])

    def moved(self) -> None:
        """A slider rests at another stop. What is no stop of ours is ignored."""
        found = frames.place_of((state.get("mem_view") or {}).get("place"))
        if found is not None:
            context, sequences, state.mem_moves = found
            # A number that was typed stands between two stops: where its slider rests it stays.
            if context != frames.nearest("context", state.mem_context):
                state.mem_context = context
            if sequences != frames.nearest("sequences", state.mem_sequences):
                state.mem_sequences = sequences

    def _pin(self) -> None:
        """Keep this choice beside the next ones: that at which a slider stands which has just
        moved."""
        self.moved()
        if len(state.mem_pinned) >= MAX_PINNED:
            state.mem_notice = Message(key="mem.error_four")
            return
        with self.page.noticing():
            state.mem_pinned = [*state.mem_pinned, (self.model()[0], estimate.make(self.choice()))]

    def _unpin(self) -> None:
        state.mem_pinned = []
        state.mem_notice = None

    # ---- the band at the top -----------------------------------------------------------------

    def band(self) -> None:
        """The model and its devices; below them how it is kept and served, and what is kept
        beside."""
        self._model_row()
        self._model_caption()
        self._engine_row()

    def _model_row(self) -> None:
        say = self.page.say
        row = st.columns([3.6, 1.9, 3.4, 1.1, 1.1, 1.1], gap="small", vertical_alignment="bottom")
        own = [OWN] if "mem_own" in state else []
        self._choose(row[0], "model", [*config.preset_table(), *own], show=self._model_name)
        closed = f"mem-other-{state.get('mem_num_read', 0)}"  # a new one: once a file is read
        with row[1].popover(
            say("mem.other"), icon=":material/upload_file:", width="stretch", key=closed
        ):
            self._other_model()
        self._choose(row[2], "gpu", device_names(), show=lambda name: name or say("mem.here"))
        for place, name in zip(row[3:], ("count", "tp", "pp"), strict=True):
            self._choose(place, name, OPTIONS[f"mem_{name}"])

    def _engine_row(self) -> None:
        say, pinned = self.page.say, bool(state.mem_pinned)
        widths = [1.9, 1.6, 1.5, 1.6, 1.6, 1.3, *([1.3] if pinned else [])]
        row = st.columns(widths, gap="small", vertical_alignment="bottom")
        apart, same = state.mem_engine in deployment.APART, say("mem.same")
        shows = (
            ("engine", lambda name: words.engine_name(name, say)),
            ("weights", str),
            ("k", str),
            ("v", lambda name: same if name == SAME else name),
        )
        for place, (name, show) in zip(row, shows, strict=False):
            disabled = name == "v" and not apart
            self._choose(place, name, OPTIONS[f"mem_{name}"], show=show, disabled=disabled)
        with row[4].popover(say("mem.options"), icon=":material/tune:", width="stretch"):
            self._options()
        row[5].button(
            say("mem.pin"),
            key="mem_pin",
            on_click=self._pin,
            help=say("mem.pin_help"),
            width="stretch",
        )
        if pinned:
            row[6].button(say("mem.unpin"), key="mem_unpin", on_click=self._unpin, width="stretch")

    def _options(self) -> None:
        """Numbers to type, and what an engine can be started with."""
        self._number("context", 1, estimate.MOST["context_len"])
        self._number("sequences", 1, estimate.MOST["num_sequences"])
        engine = state.mem_engine
        self._number("block", 1, 2**20, disabled=engine not in ("vllm", "sglang", "tensorrt-llm"))
        self._number("batched", 1, 2**24)
        st.number_input(
            self.page.say("mem.utilization"),
            0.01,
            1.0,
            step=0.01,
            key="mem_utilization",
            help=self.page.say("mem.utilization_help"),
            **KEEP,
        )
        self._number("drafts", 0, 64, disabled=engine not in ("vllm", "llama.cpp"))
        for name, only in ONLY.items():
            st.toggle(
                self.page.say(f"mem.{name}"),
                key=f"mem_{name}",
                help=self.page.say(f"mem.{name}_help"),
                disabled=engine != only,
                **KEEP,
            )

    def _number(self, name: str, least: int, most: int, *, disabled: bool = False) -> None:
        st.number_input(
            self.page.say(f"mem.{name}"),
            least,
            most,
            step=1,
            key=f"mem_{name}",
            help=self.page.say(f"mem.{name}_help"),
            disabled=disabled,
            **KEEP,
        )

    def _choose(
        self,
        place: DeltaGenerator,
        name: str,
        options: Sequence[object],
        *,
        show: Callable[..., str] = str,
        disabled: bool = False,
    ) -> None:
        """One of many."""
        place.selectbox(
            self.page.say(f"mem.{name}"),
            options,
            key=self.page.key(name),
            format_func=show,
            help=self.page.say(f"mem.{name}_help"),
            disabled=disabled,
            **KEEP,
        )

    def _model_name(self, name: str) -> str:
        own = name == OWN
        return self.page.say("mem.own", name=state.mem_own[0]) if own else config.preset(name).name

    def _other_model(self) -> None:
        """A config.json of the visitor's own: pasted, opened, named."""
        say = self.page.say
        st.text_area(
            say("mem.paste"),
            key="mem_paste",
            height=120,
            max_chars=None,
            help=say("mem.paste_help"),
            placeholder='{"model_type": "llama", "num_hidden_layers": 32, …}',
        )
        st.button(say("mem.read"), key="mem_read", on_click=self._read_pasted)
        st.file_uploader(
            say("mem.upload"),
            type=["json", "safetensors"],
            accept_multiple_files=True,
            key="mem_upload",
            on_change=self._read_upload,
            max_upload_size=MAX_UPLOAD_MB,
        )
        if self.page.registry.limits.models is None:
            st.text_input(
                say("mem.where"),
                key="mem_where",
                on_change=self._read_named,
                help=say("mem.where_help"),
            )

    def _model_caption(self) -> None:
        """What the chosen model is, and where each of its sizes comes from."""
        with self.page.refusing():
            _, model = self.model()
            if model.num_parameters is None or lacks_cross_len(model):
                self._missing_sizes(model)
            shipped = config.preset_table().get(state.mem_model, {})
            text, sources = words.model_caption(model, shipped, self.page.say)
            if state.mem_gpu and (size := devices.size_message(devices.device(state.mem_gpu))):
                text = f"{text} · {self.page.text(size)}"
            st.caption(text, help=sources)

    def _missing_sizes(self, model: ModelConfig) -> None:
        """Boxes for what the config does not say."""
        say = self.page.say
        left, right = st.columns(2)
        if model.num_parameters is None:
            left.number_input(
                say("mem.parameters"),
                0.001,
                1e5,
                step=0.1,
                key="mem_parameters",
                help=say("mem.parameters_help"),
                **KEEP,
            )
        if lacks_cross_len(model):
            right.number_input(
                say("mem.cross"),
                1,
                10**7,
                step=1,
                key="mem_cross",
                help=say("mem.cross_help"),
                **KEEP,
            )


def device_names() -> tuple[str, ...]:
    return ("", *(device.name for device in devices.devices()))


def here() -> devices.Device:
    """This machine, with what was measured of it for the latency page."""
    return devices.this_machine(ceilings.load(machine.cpu_name(), "cpu"))


def lacks_cross_len(model: ModelConfig) -> bool:
    """Whether layers look at an image or encoder whose length the config does not say."""
    every = (*model.layers, *model.cross_layers)
    return any(layer.kind == "cross" and layer.fixed_len is None for layer in every)
