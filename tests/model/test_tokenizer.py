"""Prompts: text to ids and back, without loss and without torch."""

import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

from tests.support.models import CHAT_TEMPLATE, write_tokenizer
from viz_engine.model.tokenizer import PromptTokenizer, TextStream, clean, filler_text
from viz_engine.text import UserError

ODD = {
    "nul": "a\0b",
    "right to left": "שלום \u202eabc\u202c עולם",
    "html": "<script>alert(1)</script> & <b>bold</b>",
    "surrogate": "half \ud83d here",
    "joined surrogates": "\ud83d\ude00",
    "emoji": "👩‍🚀🏳️‍🌈",
    "control": "\x07\x1b[31m\r\n",
    "combining": "e\u0301\u0323" * 5,
    "replacement": "\ufffd",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PromptTokenizer:
    folder = tmp_path_factory.mktemp("bytes")
    write_tokenizer(folder)
    return PromptTokenizer.load(folder)


def sentencepiece_like() -> PromptTokenizer:
    """Words with a leading mark, bytes for what is not in the vocabulary, as in Llama 2."""
    vocab = {f"<0x{i:02X}>": i for i in range(256)} | {"▁the": 256, "▁cat": 257, "s": 258}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PromptTokenizer(tokenizer)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("chat", [True, False])
def test_pieces_of_any_prompt_join_to_it(tokenizer: PromptTokenizer, name: str, chat: bool) -> None:
    ids = tokenizer.encode_prompt(ODD[name], chat=chat)
    text = "".join(tokenizer.texts(ids))
    expected = clean(ODD[name])
    assert text == (
        f"<|im_start|>user\n{expected}<|im_end|>\n<|im_start|>assistant\n" if chat else expected
    )
    text.encode()  # no lone surrogate is left


def test_a_lone_surrogate_becomes_one_replacement_character() -> None:
    assert clean("a\ud83db") == "a\ufffdb"
    assert clean("\ud83d\ude00") == "😀"


def test_a_character_is_in_the_piece_that_completes_it(tokenizer: PromptTokenizer) -> None:
    ids = tokenizer.encode_prompt("書é!", chat=False)
    assert tokenizer.texts(ids) == ("", "", "書", "", "é", "!")


def test_bytes_that_are_no_character_are_marked_never_replaced(
    tokenizer: PromptTokenizer,
) -> None:
    e6, a1, bang = (tokenizer.encode_prompt(c, chat=False)[0] for c in ("書", "¡"[:1], "!"))
    assert tokenizer.texts([e6, bang]) == ("", "⟨E6⟩!")
    assert tokenizer.texts([bang, e6]) == ("!", "⟨E6⟩")
    assert tokenizer.texts([99_999]) == ("⟨99999⟩",)
    assert "\ufffd" not in "".join(tokenizer.texts([e6, a1, e6, e6, bang]))


def test_the_stream_gives_what_texts_gives(tokenizer: PromptTokenizer) -> None:
    ids = tokenizer.encode_prompt("naïve 書 👩‍🚀", chat=True)
    stream = TextStream(tokenizer)
    pieces = [stream.push(id, last=i == len(ids) - 1) for i, id in enumerate(ids)]
    assert tuple(pieces) == tokenizer.texts(ids)


def test_byte_fallback_vocabularies_decode_as_their_own_decoder_does() -> None:
    tokenizer = sentencepiece_like()
    assert tokenizer.texts([256, 257, 258]) == ("the", " cat", "s")
    assert tokenizer.texts([256, 0xE4, 0xBD, 0xA0, 258]) == ("the", "", "", "你", "s")
    assert TextStream(tokenizer).push(257) == " cat"  # in mid-text the space stays


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("length", [60, 61, 62, 63, 500, 20_000])
def test_filler_fills_to_exactly_the_length_asked(
    tokenizer: PromptTokenizer, language: str, chat: bool, length: int
) -> None:
    ids = tokenizer.encode_prompt("Sum up.", chat=chat, context_len=length, filler=language)
    plain = tokenizer.encode_prompt("Sum up.", chat=chat)
    assert len(ids) == length
    text = "".join(tokenizer.texts(ids))
    assert "Sum up." in text and "⟨" not in text
    if length > len(plain) + 2:
        assert "\n\nSum up." in text
    head = "<|im_start|>user\n" if chat else ""
    assert text.startswith(head + filler_text(language)[:3])


def test_filler_leaves_a_longer_prompt_whole(tokenizer: PromptTokenizer) -> None:
    plain = tokenizer.encode_prompt("Sum up.", chat=True)
    assert tokenizer.encode_prompt("Sum up.", chat=True, context_len=5) == plain


def test_both_filler_texts_are_long_and_of_their_language() -> None:
    assert len(filler_text("en").split()) > 800
    assert sum("\u4e00" <= char <= "\u9fff" for char in filler_text("zh")) > 1200
    with pytest.raises(UserError, match="no filler text"):
        filler_text("../secrets")


@pytest.mark.parametrize("text", ["", "  \n\t", "\u3000"])
def test_an_empty_prompt_is_refused(tokenizer: PromptTokenizer, text: str) -> None:
    for chat in (True, False):
        with pytest.raises(UserError, match="prompt is empty"):
            tokenizer.encode_prompt(text, chat=chat)


def test_a_megabyte_of_text_is_counted(tokenizer: PromptTokenizer) -> None:
    ids = tokenizer.encode_prompt("x" * 2**20, chat=False)
    assert len(ids) == 2**20


def test_a_template_cannot_reach_out_of_its_sandbox(tokenizer: PromptTokenizer) -> None:
    for attack in (
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('no system') }}",
        "{{ 1 / 0 }}",
        "{% if %}",
    ):
        bad = PromptTokenizer(tokenizer._tokenizer, chat_template=attack)
        with pytest.raises(UserError, match="chat template"):
            bad.encode_prompt("Hi", chat=True)


def test_template_features_of_transformers_work(tokenizer: PromptTokenizer) -> None:
    template = (
        "{%- for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}"
        "{% if loop.first %}{% continue %}{% endif %}{% endfor %}{{ strftime_now('%Y')[:2] }}"
    )
    rich = PromptTokenizer(tokenizer._tokenizer, chat_template=template)
    ids = rich.encode_prompt("é", chat=True)
    assert "".join(rich.texts(ids)) == '{"role": "user", "content": "é"}20'


def test_a_model_without_template_says_so(tokenizer: PromptTokenizer) -> None:
    bare = PromptTokenizer(tokenizer._tokenizer)
    assert not bare.has_chat_template
    with pytest.raises(UserError, match="chat format"):
        bare.encode_prompt("Hi", chat=True)


def test_templates_come_from_any_of_their_three_places(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert PromptTokenizer.load(tmp_path).has_chat_template
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "default", "template": "one"}]}'
    )
    ids = PromptTokenizer.load(tmp_path).encode_prompt("Hi", chat=True)
    assert len(ids) == 3
    (tmp_path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    assert len(PromptTokenizer.load(tmp_path).encode_prompt("Hi", chat=True)) > 3


@pytest.mark.parametrize("content", [None, "{", "[]", '{"model": 3}'])
def test_a_missing_or_broken_tokenizer_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match="tokenizer"):
        PromptTokenizer.load(tmp_path)


@pytest.mark.process
def test_counting_a_prompt_imports_no_torch() -> None:
    code = (
        "import sys; from viz_engine.model import tokenizer, files; "
        "from viz_engine.run import checks, command; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
