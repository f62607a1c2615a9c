"""Plotly figures: functions from plain data to `go.Figure`. The only module that knows Plotly.

The first part is shared by all pages: the colours of the live view, a layout, the export buttons,
axes for bytes and counts. A figure gets its words from the page, so that it speaks its language.

Try it: `python -c "from viz_engine import charts; print(charts.byte_axis(1e6, 1e12))"`
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

# ---- shared: theme, layout, export, axes ---------------------------------------------------------

FONT = '"Source Sans", "Source Sans Pro", "Noto Sans CJK SC", "PingFang SC", sans-serif'


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """One theme's colours, those of assets/live_view.css with its mixes worked out."""

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


def layout(colours: Palette, *, height: int, **changes: object) -> dict[str, object]:
    """What every figure's layout begins with, `changes` over it.

    The background is the page's own colour and not transparent: an exported picture is readable
    wherever it is put. `uirevision` keeps a visitor's zoom and hidden series while data changes.
    """
    axis = {
        "gridcolor": colours.line,
        "linecolor": colours.line,
        "zerolinecolor": colours.line,
        "tickfont": {"color": colours.muted},
        "title": {"font": {"color": colours.muted, "size": 12}, "standoff": 8},
        "automargin": True,
    }
    made: dict[str, object] = {
        "height": height,
        "paper_bgcolor": colours.background,
        "plot_bgcolor": colours.background,
        "font": {"family": FONT, "size": 13, "color": colours.text},
        "margin": {"l": 8, "r": 12, "t": 28, "b": 8},
        "hoverlabel": {
            "bgcolor": colours.card,
            "bordercolor": colours.line,
            "font": {"family": FONT, "color": colours.text},
        },
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "xanchor": "left"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": colours.muted},
        "uirevision": "kept",
        "xaxis": axis,
        "yaxis": axis,
    }
    for name, change in changes.items():
        old = made.get(name)
        both = isinstance(old, Mapping) and isinstance(change, Mapping)
        made[name] = _merged(old, change) if both else change
    return made


def _merged(old: Mapping, change: Mapping) -> dict[str, object]:
    """`change` over `old`, mappings in them too."""
    both = {
        name: _merged(old[name], change[name])
        for name in old.keys() & change.keys()
        if isinstance(old[name], Mapping) and isinstance(change[name], Mapping)
    }
    return {**old, **change, **both}


def config(file_name: str, *, image: str = "png") -> dict[str, object]:
    """Plotly's `config=`: the button that saves the picture (`png` at double size, or `svg`),
    and nothing that a reader does not need."""
    return {
        "displaylogo": False,
        "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
        "toImageButtonOptions": {
            "format": image,
            "filename": file_name,
            "scale": 2 if image == "png" else 1,
        },
    }


def grouped(number: float) -> str:
    """A count with narrow spaces: 131 072."""
    return f"{number:,.0f}".replace(",", "\u202f")


def short_count(number: float) -> str:
    """A count as an axis shows it: whole binary thousands as 4K, 128K, 1M, others as grouped."""
    for unit, size in (("M", 2**20), ("K", 2**10)):
        if number >= size and number % size == 0:
            return f"{number // size:.0f}{unit}"
    return grouped(number)


def byte_axis(low: float, high: float, *, log: bool = True) -> dict[str, object]:
    """Tick places and texts of an axis of bytes from `low` to `high`, in KiB, MiB, GiB, TiB."""
    if not log:
        step = _nice_step(high / 6)
        values = [step * i for i in range(int(high / step) + 1)]
    else:
        first, last = math.floor(math.log2(max(low, 1))), math.ceil(math.log2(max(high, 2)))
        every = max(1, round((last - first) / 6))
        values = [2.0**power for power in range(first, last + 1, every)]
    return {"tickvals": values, "ticktext": [bytes_text(value) for value in values]}


def _nice_step(size: float) -> float:
    """The next of 1, 2, 5, 10 ... binary units that is at least `size` bytes."""
    unit = 1024 ** max(0, math.floor(math.log(max(size, 1), 1024)))
    ten = 10 ** math.floor(math.log10(max(size / unit, 1)))
    return next(unit * ten * n for n in (1, 2, 5, 10, 20) if unit * ten * n >= size)


def bytes_text(num_bytes: float) -> str:
    """A tick of bytes without needless digits: 512 KiB, 1.5 GiB, 16 TiB."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} B"
