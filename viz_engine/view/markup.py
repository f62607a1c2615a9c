"""Numbers and tables as HTML for a page: everything that is written into it is escaped here.

A number opens to its formula without a round trip to the server: it is a `<details>` element. It
knows nothing of what the numbers mean. The look is in assets/css/page.css.

Try it: `python -c "from viz_engine.view import markup; print(markup.table(['a'], [['<b>']]))"`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number on a page. `tag` says whether it is predicted, measured, counted or recorded;
    `formula` is the formula with the numbers filled in, a line each."""

    label: str
    value: str  # "-" where there is no basis
    unit: str = ""
    tag: str = ""
    note: str = ""
    formula: str = ""
    tone: str = ""  # good, bad or nothing
    help: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of a table that is more than text."""

    text: str
    tone: str = ""  # good, bad, weak, or nothing
    href: str = ""  # an https address
    help: str = ""


def cards(numbers: Sequence[Number], *, two: bool = False) -> str:
    """A grid of numbers, in two columns or as many as there is room for."""
    return f'<div class="numbers{" two" * two}">{"".join(map(_card, numbers))}</div>'


def _card(number: Number) -> str:
    tone = f" {number.tone}" if number.tone in ("good", "bad") else ""
    tag = f'<span class="tag">{escape(number.tag)}</span>' if number.tag else ""
    unit = f"<u>{escape(number.unit)}</u>" if number.unit else ""
    head = (
        f'<div class="head"><span title="{escape(number.help)}">{escape(number.label)}</span>'
        f"{tag}</div>"
        f'<div class="value"><b>{escape(number.value)}</b>{unit}</div>'
        f'<div class="note" title="{escape(number.note)}">{escape(number.note)}</div>'
    )
    if not number.formula:
        return f'<div class="number{tone}">{head}</div>'
    lines = "".join(f"<p>{escape(line)}</p>" for line in number.formula.split("\n") if line)
    return (
        f'<details class="number{tone}" name="number"><summary>{head}</summary>'
        f'<div class="formula">{lines}</div></details>'
    )


def table(head: Sequence[str | Cell], rows: Sequence[Sequence[str | Cell]]) -> str:
    """A table whose first column is text and whose others are figures. A row that begins with a
    Cell of tone `good` is the chosen one."""
    top = "".join(f"<th>{_cell(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr{_chosen(row)}>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>"
        for row in rows
    )
    inner = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="figures"><table>{inner}</table></div>'


def _chosen(row: Sequence[str | Cell]) -> str:
    first = row[0] if row else ""
    return ' class="chosen"' if isinstance(first, Cell) and first.tone == "good" else ""


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return escape(cell)
    text = escape(cell.text)
    if cell.href.startswith("https://"):
        text = f'<a href="{escape(cell.href)}" target="_blank" rel="noreferrer">{text}</a>'
    tone = f' class="{cell.tone}"' if cell.tone in ("good", "bad", "weak") else ""
    tip = f' title="{escape(cell.help)}"' if cell.help else ""
    return f"<span{tone}{tip}>{text}</span>" if tone or tip else text


def notices(items: Sequence[tuple[str, str, str]]) -> str:
    """Short statements side by side: (tone `good` or `bad`, heading, text)."""
    mark = {"good": "✓", "bad": "!"}
    return (
        '<div class="notices">'
        + "".join(
            f'<div class="notice {tone if tone in mark else ""}"><i>{mark.get(tone, "·")}</i>'
            f"<div><b>{escape(head)}</b><span>{escape(text)}</span></div></div>"
            for tone, head, text in items
        )
        + "</div>"
    )
