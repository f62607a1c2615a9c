"""What every page begins with: its visitor's language, theme and session, the runs, a notice.

A page keeps what its visitor chose in the session under names that begin with its prefix.

Try it: `streamlit run app.py`
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from viz_engine.run.events import RunSettings
from viz_engine.run.experiment import Settings
from viz_engine.server import registry as server_registry
from viz_engine.server import visitors
from viz_engine.server.runs import Run
from viz_engine.text import Message, UserError, plain, t


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page while its script runs for one visitor."""

    prefix: str = ""
    language: str = field(default_factory=lambda: st.session_state.language)
    registry: server_registry.Registry = field(default_factory=server_registry.registry)
    session_id: str = field(default_factory=lambda: get_script_run_ctx().session_id)

    def say(self, key: str, /, **params: object) -> str:
        """A text in the visitor's language."""
        return t(key, self.language, **params)

    @property
    def browser(self) -> str | None:
        """The secret of the visitor's browser."""
        return visitors.browser_of(st.context.cookies)

    @property
    def client(self) -> str:
        """Whom the visitor counts as where something is shared out."""
        return visitors.client_of(st.context.ip_address) or self.browser or self.session_id

    def submit(self, settings: RunSettings | Settings) -> Run:
        """Queue what the visitor asks for. Raises UserError."""
        return self.registry.submit(
            settings, self.session_id, browser=self.browser, client=self.client
        )

    @property
    def theme(self) -> str:
        """`dark` or `light`: asked anew, since a fragment may outlive a change of it."""
        return st.context.theme.type or "light"

    @property
    def address(self) -> str:
        """The page's address without what follows the `?`."""
        return (st.context.url or "").partition("?")[0]

    @property
    def image(self) -> str:
        """The format in which the page's charts are saved: `png`, `svg`."""
        return self.get("image")

    # ---- what is kept for the session --------------------------------------------------------

    def key(self, name: str) -> str:
        return f"{self.prefix}{name}"

    def get(self, name: str, default: object = None) -> object:
        return st.session_state.get(self.key(name), default)

    def put(self, **values: object) -> None:
        for name, value in values.items():
            st.session_state[self.key(name)] = value

    def begin(self, values: dict[str, object]) -> None:
        """First values: what the visitor has put there stays."""
        for name, value in values.items():
            st.session_state.setdefault(self.key(name), value)

    # ---- sentences that stop a visitor -------------------------------------------------------

    def text(self, message: Message) -> str:
        """A sentence as text where Markdown is read."""
        return plain(message.text(self.language))

    def show_notice(self) -> None:
        """The last sentence that was kept for the visitor, if there is one."""
        if notice := self.get("notice"):
            warn(self.text(notice))

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """A refusal of what is done here is kept as the notice; what was there stays."""
        try:
            yield
        except UserError as error:
            self.put(notice=error.message)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """A refusal of what is done here stands in its place."""
        try:
            yield
        except UserError as error:
            st.caption(f":orange[{self.text(error.message)}]")


def warn(text: str) -> None:
    """A sentence in a box of its own; `text` is Markdown."""
    st.warning(text, icon=":material/info:")
