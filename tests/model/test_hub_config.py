"""config.json of a folder or of the hub: text, or a sentence that says what is wrong."""

from pathlib import Path

import pytest

from viz_engine.model import hub_config
from viz_engine.model.config_keys import MAX_CHARS
from viz_engine.text import UserError


def test_the_text_of_a_folder_comes_back_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": "界"}', encoding="utf-8")
    assert hub_config.read_text(f" {tmp_path} ") == '{"a": "界"}'


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (None, "error.model_no_config"),
        (b"\xff\xfe\x00", "error.model_bad_config"),
        (b"x" * (MAX_CHARS + 1), "error.size_too_large"),
    ],
    ids=["missing", "bytes", "large"],
)
def test_a_folder_without_a_readable_config_is_refused(tmp_path, content, key) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError) as refused:
        hub_config.read_text(str(tmp_path))
    assert refused.value.message.key == key


@pytest.mark.parametrize(
    "name", ["", "  ", "a\0b", "../../etc", "x" * 2000, "a b", "https://x.y/z"]
)
def test_what_is_neither_folder_nor_hub_id_is_never_fetched(name, monkeypatch) -> None:
    monkeypatch.setattr(hub_config, "_fetch", lambda name: pytest.fail("fetched"))
    with pytest.raises(UserError, match="folder"):
        hub_config.read_text(name)


def test_a_hub_id_is_fetched_and_read(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(hub_config, "_fetch", lambda name: str(tmp_path / "config.json"))
    assert hub_config.read_text("owner/name") == "{}"


def test_a_hub_that_cannot_be_reached_is_a_sentence(monkeypatch) -> None:
    import huggingface_hub

    def refuse(*args: object, **kwargs: object) -> str:
        assert args == ("owner/name", "config.json") and kwargs["etag_timeout"] < 30
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(UserError, match="could not be fetched"):
        hub_config.read_text("owner/name")
