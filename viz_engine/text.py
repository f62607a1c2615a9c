"""English and Chinese: every string that a person sees is a key in assets/locales/.

It knows nothing of pages or runs. A `Message` is a key with its numbers, so that an error made in
the engine process can be read in either language by whoever opens the run later.

Try it: `python -c "from viz_engine.text import t; print(t('ask.generate', 'zh'))"`
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from viz_engine.paths import ASSETS

LANGUAGES = {"en": "English", "zh": "中文"}
LOCALES = ASSETS / "locales"
Say = Callable[..., str]  # `t` in the language of one visitor: a key, and what fills its places


@cache
def strings(language: str) -> dict[str, str]:
    """All strings of one language, by key. An unknown language reads as English."""
    folder = LOCALES / (language if language in LANGUAGES else "en")
    merged: dict[str, str] = {}
    for path in sorted(folder.glob("*.json")):
        merged |= json.loads(path.read_text(encoding="utf-8"))
    return merged


def t(key: str, language: str, /, **params: object) -> str:
    """The text of `key`, its `{name}` places filled from `params`. Raises KeyError on a key
    without text."""
    text = strings(language)[key]
    return text.format(**params) if params else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A sentence as data: a locale key and what fills its places, which may be sentences too.
    `str()` of it is English."""

    key: str
    params: Mapping[str, "str | int | float | Message"] = field(default_factory=dict)

    def text(self, language: str) -> str:
        """The sentence in `language`. A key or a place that this version lacks (a run file made by
        another version) gives the generic sentence with the key, never an exception."""
        params = {
            name: value.text(language) if isinstance(value, Message) else value
            for name, value in self.params.items()
        }
        try:
            return t(self.key, language, **params)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError):
            return t("error.unknown_message", language, key=self.key[:80])

    def __str__(self) -> str:
        return self.text("en")


class UserError(ValueError):
    """Something a visitor can put right: carries the sentence that says what is wrong and what to
    do."""

    def __init__(self, key: str, /, **params: str | int | float | Message) -> None:
        self.message = Message(key=key, params=params)
        super().__init__(key, params)

    def __str__(self) -> str:
        return str(self.message)


def whole_characters(value: object) -> object:
    """JSON values without halves of characters (`\\ud83d` alone), which no encoding can write:
    each reads as "?"."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


MARKDOWN = "\\`*_{}[]()<>#+-.!|~$:&"


# What Streamlit makes an icon, a link or an address of in text that is escaped too: `:name`,
# `scheme://`, `www.`, `a@b`. A word joiner, which nobody sees, keeps the two sides apart.
JOINER = "\u2060"
_LIVE = re.compile(r":(?=[\w/+-])|www(?=\.)|@(?=\w)", re.IGNORECASE)


def plain(text: str) -> str:
    """Text as text in a place that reads Markdown."""
    apart = _LIVE.sub(lambda found: found[0] + JOINER, text)
    return "".join(f"\\{char}" if char in MARKDOWN else char for char in apart)
