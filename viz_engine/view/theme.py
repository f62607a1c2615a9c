"""The colours and the font of charts: those of the live view, in both themes.

Try it: `python -c "from viz_engine.view import theme; print(theme.palette('dark').k)"`
"""

from dataclasses import dataclass

FONT = '"Source Sans", "Source Sans Pro", "Noto Sans CJK SC", "PingFang SC", sans-serif'


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """One theme's colours, those of assets/css/live_view.css with its mixes worked out."""

    background: str
    card: str
    text: str
    muted: str
    line: str
    track: str
    k: str
    v: str
    new: str
    decode: str
    read: str
    prefill: str
    bad: str


PALETTES = {
    "dark": Palette(
        background="#0e1117",
        card="#161a23",
        text="#e9ecf3",
        muted="#868c9b",
        line="#292e39",
        track="#1f232c",
        k="#6ea8fe",
        v="#f2a65a",
        new="#3ddc97",
        decode="#2f8f6b",
        read="#ffd166",
        prefill="#b18cff",
        bad="#ff8f8f",
    ),
    "light": Palette(
        background="#fbfbfd",
        card="#fefefe",
        text="#171a21",
        muted="#5f6779",
        line="#e1e3ea",
        track="#ecedf2",
        k="#1f5fd6",
        v="#b85c00",
        new="#00845a",
        decode="#6fbf9f",
        read="#b07a00",
        prefill="#6b3fd4",
        bad="#b3261e",
    ),
}


def palette(theme: str | None) -> Palette:
    """Colours of `dark` or `light` (`st.context.theme.type`); anything else is light."""
    return PALETTES.get(theme or "light", PALETTES["light"])
