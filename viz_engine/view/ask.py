"""The boxes that several pages share: the prompt with its presets, sizes, model, an opened file.

A page gives its `say` and a prefix: what a box holds is kept for the session under the box's name
after the prefix.

Try it: `streamlit run app.py`
"""

import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.runtime.uploaded_file_manager import UploadedFile

from viz_engine.model import files
from viz_engine.model.tokenizer import tokenizer_of
from viz_engine.numbers import grouped
from viz_engine.run.log import MAX_FILE_BYTES
from viz_engine.server import registry as server_registry
from viz_engine.server.runs import Run
from viz_engine.text import Message, Say, UserError

KEEP = {"persist_state": "session"}  # the value outlives a visit to another page
DTYPES = ("auto", "bfloat16", "float16", "float32")
MODEL = {"model": files.DEFAULT_MODEL, "device": "auto", "dtype": "auto"}  # at first


def prompt(
    say: Say,
    prefix: str,
    presets: Sequence[str],
    label: Callable[[str], str],
    on_preset: Callable[[], None],
    height: int,
) -> None:
    """`preset` over `prompt`; `label` names a preset."""
    st.pills(
        say("preset.label"),
        presets,
        format_func=label,
        key=f"{prefix}preset",
        on_change=on_preset,
        label_visibility="collapsed",
        **KEEP,
    )
    st.text_area(
        say("ask.prompt"),
        key=f"{prefix}prompt",
        height=height,
        help=say("ask.prompt_help"),
        label_visibility="collapsed",
        placeholder=say("ask.prompt_help"),
        **KEEP,
    )


def sizes(
    say: Say,
    prefix: str,
    context_lens: Sequence[int],
    new_tokens: Sequence[int],
    new_tokens_help: str,
) -> DeltaGenerator:
    """`context_len` (0: the prompt as it is) and `new_tokens` in a row; returns the place of a
    third slider."""
    one, two, three = st.columns(3, gap="medium")
    one.select_slider(
        say("ask.context"),
        context_lens,
        key=f"{prefix}context_len",
        format_func=lambda n: grouped(n) if n else say("ask.context_as_is"),
        help=say("ask.context_help"),
        **KEEP,
    )
    two.select_slider(
        say("ask.new_tokens"),
        new_tokens,
        key=f"{prefix}new_tokens",
        help=say(new_tokens_help),
        **KEEP,
    )
    return three


def model(
    registry: server_registry.Registry, say: Say, prefix: str, *, num_columns: int = 2
) -> list[DeltaGenerator]:
    """`model`, under it `device` and `dtype` in the first of `num_columns` columns; returns those
    columns."""
    offered = registry.limits.models
    given = {"key": f"{prefix}model", "help": say("ask.model_help"), **KEEP}
    if offered is None:
        st.text_input(say("ask.model"), **given)
    else:
        st.selectbox(say("ask.model"), offered, **given)
    devices = ["auto", *registry.engine.info().devices]
    if st.session_state[f"{prefix}device"] not in devices:
        devices.append(st.session_state[f"{prefix}device"])
    columns = st.columns(num_columns)
    columns[0].selectbox(say("ask.device"), devices, key=f"{prefix}device", **KEEP)
    columns[1].selectbox(
        say("ask.dtype"), DTYPES, key=f"{prefix}dtype", help=say("ask.dtype_help"), **KEEP
    )
    return columns


def model_chosen(prefix: str) -> dict[str, str]:
    """What the boxes of `model` hold: `model`, `device` and `dtype` of a run's settings."""
    held = {name: st.session_state[f"{prefix}{name}"] for name in MODEL}
    return held | {"model": held["model"].strip() or files.DEFAULT_MODEL}


def recorded(
    names: Sequence[str], label: Callable[[str], str], id_prefix: str, show: Callable[[str], None]
) -> None:
    """A button for each run (or race) that ships; `show` is given its id."""
    for name in names:
        st.button(
            label(name),
            key=f"button-{id_prefix}{name}",
            on_click=show,
            args=(f"{id_prefix}{name}",),
            width="stretch",
        )


def download(say: Say, label: str, run: Run) -> None:
    """The button that saves a run's or a race's records."""
    st.download_button(
        say(label),
        data=lambda: "".join(line + "\n" for line in run.lines),
        file_name=f"{run.id}.jsonl",
        mime="application/x-ndjson",
        icon=":material/download:",
        on_click="ignore",
        width="stretch",
    )


def opened(
    upload: UploadedFile, read: Callable[[bytes], object], broken: str
) -> tuple[object, Message | None]:
    """What `read` makes of an opened file, all that is done with it included, and None; or None
    and the sentence that says what is wrong with it (`broken` is the text for what `read` itself
    could not say)."""
    try:
        if upload.size > MAX_FILE_BYTES:
            most = MAX_FILE_BYTES // 2**20
            raise UserError("error.file_size", size=upload.size // 2**20, most=most)
        return read(upload.getvalue()), None
    except UserError as error:
        return None, error.message
    except Exception:  # whatever a file holds, the page stays
        traceback.print_exc()
        return None, Message(key=broken)


@lru_cache(maxsize=64)
def num_prompt_tokens(folder: Path, text: str, chat: bool, context_len: int | None) -> int:
    """How many tokens a prompt is for the model in a folder. Raises UserError."""
    return len(tokenizer_of(folder).encode_prompt(text, chat=chat, context_len=context_len))
