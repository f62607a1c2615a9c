"""The frame around every page: title, navigation, language, theme styles."""

from pathlib import Path

import streamlit as st

from viz_engine.text import LANGUAGES, t

ASSETS = Path(__file__).resolve().parent.parent / "assets"


def logo() -> None:
    """The word mark, in the colour that the visitor's theme can show."""
    colour = "#e9ecf3" if st.context.theme.type == "dark" else "#171a21"
    svg = (ASSETS / "logo.svg").read_text(encoding="utf-8")
    st.logo(svg.replace("currentColor", colour), size="large")


def language_switch() -> str:
    """`en` or `zh`, kept in the URL as `?lang=`; a Chinese browser begins in Chinese."""
    asked = st.query_params.get("lang")
    if "lang" not in st.session_state and asked not in LANGUAGES:
        st.session_state.lang = "zh" if (st.context.locale or "").startswith("zh") else "en"
    with st.container(key="toolbar", horizontal=True, horizontal_alignment="right"):
        return st.segmented_control(
            t("page.language", "en"),
            list(LANGUAGES),
            default="en",
            required=True,
            format_func=LANGUAGES.get,
            key="lang",
            bind="query-params",
            label_visibility="collapsed",
        )


st.set_page_config(
    page_title="Second Token", page_icon="⚡", layout="wide", initial_sidebar_state="collapsed"
)
st.html(f"<style>{(ASSETS / 'page.css').read_text(encoding='utf-8')}</style>")
logo()
language = language_switch()
st.session_state.language = language
page = st.navigation(
    [st.Page("live.py", title=t("page.live", language), url_path="live", default=True)],
    position="top",
)
page.run()
