"""Text to token ids and back: chat template, context filler, readable pieces.

It uses the `tokenizers` library alone, so that the page counts a prompt exactly as the engine
will and needs no torch. It knows nothing of models, limits or runs.

Try it: `python -c "from viz_engine.model import tokenizer, files as m; \
print(tokenizer.PromptTokenizer.load(m.locate(m.DEFAULT_MODEL)).encode_prompt('Hi', chat=True))"`
"""

import codecs
import datetime
import json
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.sandbox
from tokenizers import Tokenizer

from viz_engine.paths import ASSETS, read_file
from viz_engine.text import UserError

FILLERS = ("en", "zh")
MAX_BYTES = 32 * 2**20  # of a tokenizer's config or a template
MARKER = "\ue000\ue001\ue000"  # private use: stands where the visitor's text will be
SPECIALS = ("bos_token", "eos_token", "pad_token", "unk_token")


def clean(text: str) -> str:
    """`text` with each lone surrogate (half a UTF-16 pair, no character) made U+FFFD, as browsers
    do."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@cache
def filler_text(language: str) -> str:
    """The shipped text that fills a context. Raises UserError on a language without one."""
    if language not in FILLERS:
        raise UserError("error.filler", language=language, known=", ".join(FILLERS))
    return (ASSETS / f"filler_{language}.txt").read_text(encoding="utf-8").strip()


class PromptTokenizer:
    """A model's tokenizer with its chat template."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template
        self._special_tokens = dict(special_tokens or {})
        types = _decoder_types(json.loads(tokenizer.to_str())["decoder"])
        self._is_byte_level = "ByteLevel" in types
        # Whether decoding drops the space that the tokenizer put before the first word.
        self.strips_start = bool({"Strip", "Metaspace"} & types)
        self._added = {
            id: token.content for id, token in tokenizer.get_added_tokens_decoder().items()
        }

    @classmethod
    def load(cls, folder: Path) -> "PromptTokenizer":
        """From a model's folder: tokenizer.json, tokenizer_config.json and, if it is there,
        chat_template.jinja.

        Raises UserError where there is no tokenizer.json or it cannot be read.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UserError("error.model_tokenizer", folder=folder.name)
        try:
            tokenizer = Tokenizer.from_file(str(path))
            config_path = folder / "tokenizer_config.json"
            config = json.loads(read_file(config_path, MAX_BYTES)) if config_path.is_file() else {}
            template_path = folder / "chat_template.jinja"
            template = None
            if template_path.is_file():
                template = read_file(template_path, MAX_BYTES).decode("utf-8")
        except Exception as error:  # tokenizers raises bare Exception
            raise UserError(
                "error.model_tokenizer_broken", folder=folder.name, reason=str(error)[:200]
            ) from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if template is None:
            template = _named_template(config.get("chat_template"))
        specials = {name: _token_text(config.get(name)) for name in SPECIALS if config.get(name)}
        return cls(tokenizer, chat_template=template, special_tokens=specials)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def token_id(self, special: str) -> int | None:
        """The id of `bos_token`, `eos_token`, `pad_token` or `unk_token`, where the model names
        one."""
        text = self._special_tokens.get(special)
        return None if text is None else self._tokenizer.token_to_id(text)

    def encode_prompt(
        self,
        prompt: str,
        *,
        chat: bool,
        context_len: int | None = None,
        filler: str = "en",
    ) -> list[int]:
        """The token ids of a prompt, in the chat template or raw.

        With `context_len`, filler text is put before the visitor's text (inside the user's
        message) so that there are exactly that many ids; a prompt that is longer stays whole.
        Raises UserError on an empty prompt, a model without chat template, or a template that
        fails.
        """
        prompt = clean(prompt)
        if not prompt.strip():
            raise UserError("error.prompt_empty")
        if chat:
            text = self._render(prompt)
            start = _common_len(text, self._render(MARKER))
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        else:
            start = 0
            encoding = self._tokenizer.encode(prompt)
        ids = list(encoding.ids)
        if not ids:
            raise UserError("error.prompt_empty")
        missing = (context_len or 0) - len(ids)
        if missing > 0:
            place = next((i for i, (_, stop) in enumerate(encoding.offsets) if stop > start), 0)
            ids[place:place] = self._filler_ids(missing, filler)
        return ids

    def texts(self, ids: Iterable[int]) -> tuple[str, ...]:
        """The tokens as text pieces that join to the whole text.

        A token that completes no character (part of a Chinese character, say) is an empty piece;
        the character is in the piece that completes it. Bytes that are no character stand as `⟨E4
        BD⟩`.
        """
        ids = list(ids)
        stream = TextStream(self, at_start=True)
        return tuple(stream.push(id, last=i == len(ids) - 1) for i, id in enumerate(ids))

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token stands for. An id without a token gives its number, as
        `⟨151700⟩`."""
        if id in self._added:
            return self._added[id].encode()
        token = self._tokenizer.id_to_token(id)
        if token is None:
            return f"⟨{id}⟩".encode()
        if self._is_byte_level:
            try:
                return bytes(map(_byte_table().__getitem__, token))
            except KeyError:
                return token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("▁", " ").encode()

    def _render(self, content: str) -> str:
        if self._template is None:
            raise UserError("error.no_chat_template")
        try:
            return _compiled(self._template).render(
                messages=[{"role": "user", "content": content}],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise UserError("error.chat_template", reason=str(error)[:200]) from None

    def _filler_ids(self, num_tokens: int, language: str) -> list[int]:
        """Exactly `num_tokens` ids of the shipped text, repeated when it is too short, then a
        blank line."""
        text = self._ids("\n\n" + filler_text(language))
        first = self._ids(filler_text(language))
        gap = self._ids("\n\n")
        repeats = max(0, num_tokens - len(first)) // len(text) + 1
        ids = (first + text * repeats)[: max(num_tokens - len(gap), 0)]
        newline = self._ids("\n")
        if len(newline) == 1:  # a character cut in half gives way to line breaks
            whole = ids[: self._whole_len(ids)]
            ids = whole + newline * (len(ids) - len(whole))
        return (ids + gap)[-num_tokens:]

    def _whole_len(self, ids: list[int]) -> int:
        """How many of the first tokens end on a whole character."""
        for num in range(len(ids), max(len(ids) - 4, 0), -1):
            tail = b"".join(self.token_bytes(id) for id in ids[max(num - 4, 0) : num])
            if not _open_tail(tail):
                return num
        return len(ids)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


@lru_cache(maxsize=4)
def tokenizer_of(folder: Path) -> PromptTokenizer:
    """The tokenizer in a model's folder, read once for all visitors. Raises UserError."""
    return PromptTokenizer.load(folder)


class TextStream:
    """Tokens to text one by one: each `push` gives the text that this token completes."""

    def __init__(self, tokenizer: PromptTokenizer, *, at_start: bool = False) -> None:
        self._tokenizer = tokenizer
        self._decode = codecs.getincrementaldecoder("utf-8")("second-token-marks")
        self._strip = at_start and tokenizer.strips_start

    def push(self, id: int, *, last: bool = False) -> str:
        """The text that `id` completes; `last` also gives what is left of an unfinished
        character, in marks."""
        data = self._tokenizer.token_bytes(id)
        if data.isascii() and not self._decode.buffer:  # as nearly always, and a fifth of the time
            text = data.decode("ascii")
        else:
            text = self._decode.decode(data, last)
        if self._strip and text:
            text, self._strip = text.removeprefix(" "), False
        return text


def _mark_bytes(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: bytes that are no character become `⟨E4 BD⟩`."""
    return f"⟨{error.object[error.start : error.end].hex(' ').upper()}⟩", error.end


codecs.register_error("second-token-marks", _mark_bytes)


def _open_tail(data: bytes) -> bool:
    """Whether `data` ends within a character."""
    for back in range(1, min(len(data), 4) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        need = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return need > back
    return False


@cache
def _byte_table() -> dict[str, int]:
    """Character to byte of byte-level vocabularies: printable Latin-1 stands for itself, the
    other bytes for the characters from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


def _decoder_types(decoder: object) -> set[str]:
    if not isinstance(decoder, dict):
        return set()
    parts = decoder.get("decoders") or []
    return {decoder.get("type", "")}.union(*(_decoder_types(part) for part in parts))


def _common_len(a: str, b: str) -> int:
    """Length of the longest common start."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def _named_template(value: object) -> str | None:
    """Templates come as a text or as a list of named ones."""
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _token_text(value: object) -> str:
    return str(value["content"]) if isinstance(value, dict) and "content" in value else str(value)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the model writes, for training; here its body is plain text."""

    tags = frozenset({"generation"})

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: object) -> None:
    raise jinja2.TemplateError(str(message))


@cache
def _compiled(template: str) -> jinja2.Template:
    """The template in a sandbox: a model's files are data from elsewhere."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "sort_keys": False}
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    return environment.from_string(template)
