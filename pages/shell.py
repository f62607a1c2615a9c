"""The frame around every page: title, navigation, language, theme styles."""

import streamlit as st

from viz_engine.paths import ASSETS
from viz_engine.text import LANGUAGES, t
from viz_engine.view import frame
from viz_engine.view.page import Page
from viz_engine.view.paste import PasteBox

TITLES = {"live": "page.live", "race": "page.race", "latency": "lat.title", "memory": "mem.title"}


def logo() -> None:
    """The word mark, in the colour that the visitor's theme can show."""
    colour = "#e9ecf3" if st.context.theme.type == "dark" else "#171a21"
    svg = (ASSETS / "logo.svg").read_text(encoding="utf-8")
    st.logo(svg.replace("currentColor", colour), size="large")


def language_switch() -> str:
    """`en` or `zh`, kept in the URL as `?lang=`; a Chinese browser begins in Chinese."""
    if "language" not in st.session_state:
        asked = st.query_params.get("lang")
        local = "zh" if (st.context.locale or "").startswith("zh") else "en"
        st.session_state.language = asked if asked in LANGUAGES else local
    chosen = st.segmented_control(
        t("page.language", st.session_state.language),
        list(LANGUAGES),
        required=True,
        format_func=LANGUAGES.get,
        key="language",
        label_visibility="collapsed",
        persist_state="session",
    )
    if st.query_params.get("lang") != chosen:
        st.query_params["lang"] = chosen
    return chosen


st.set_page_config(
    page_title="Second Token", page_icon="⚡", layout="wide", initial_sidebar_state="collapsed"
)
st.html(f"<style>{(ASSETS / 'css' / 'page.css').read_text(encoding='utf-8')}</style>")
logo()
toolbar = st.container(key="toolbar", horizontal=True, horizontal_alignment="right")
with toolbar:
    first = st.container(width="content")  # what is drawn in it stands before the switch
    language = language_switch()
pages = {
    name: st.Page(f"{name}.py", title=t(title, language), url_path=name, default=name == "live")
    for name, title in TITLES.items()
}
page = st.navigation(list(pages.values()), position="top")
with first:
    frame.show(page.url_path or "live", Page().say)
with toolbar:
    PasteBox(page=Page()).show()
if (to := st.session_state.pop("paste_to", None)) is not None:
    name, named = to
    st.switch_page(pages[name], query_params={"lang": language, **named})
page.run()
