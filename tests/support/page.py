"""A page's script as a visitor runs it, without a browser: its boxes, its texts, and what its view
would draw from."""

import json
import re

from streamlit.testing.v1 import AppTest

from viz_engine.paths import ROOT
from viz_engine.text import JOINER


def opened(name: str, **query: str) -> AppTest:
    """A page by its address: `opened("race", lang="en", race="gone")`."""
    test = AppTest.from_file(str(ROOT / "pages" / "shell.py"), default_timeout=120)
    for key, value in query.items():
        test.query_params[key] = value
    if name != "live":
        test.switch_page(str(ROOT / "pages" / f"{name}.py"))
    return sound(test.run())


def sound(test: AppTest) -> AppTest:
    assert not test.exception, test.exception[0].message
    return test


def notices(test: AppTest) -> list[str]:
    """The sentences that stop a visitor, as they are read."""
    return [read(warning.value) for warning in test.warning]


def captions(test: AppTest) -> str:
    return read("\n".join(caption.value for caption in test.caption))


def read(markdown: str) -> str:
    """Text as a browser shows it: a backslash before a character is not seen, nor a joiner."""
    return re.sub(r"\\(.)", r"\1", markdown).replace("\u202f", "").replace(JOINER, "")


def view(test: AppTest) -> dict:
    """What the page's own view is mounted with: the frame of every page stands before it."""
    frame, own = (json.loads(part.proto.json) for part in test.get("bidi_component")[:2])
    assert "question" in frame
    return own


def charts(test: AppTest) -> list[dict]:
    """The figures of its charts."""
    return [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]


def html(test: AppTest) -> str:
    """All tables, cards and notices of its own markup."""
    return "\n".join(part.proto.body for part in test.get("html")).replace("\u202f", "")
