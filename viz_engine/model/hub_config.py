"""The text of a config.json from where a visitor says it is: a folder of this machine, or the hub.

Only that one small file is read or fetched, as text; nothing of it runs. It knows nothing of what
stands in it.

Try it: `python -c "from viz_engine.model import hub_config; \
print(hub_config.read_text('.')[:40])"`
"""

import errno
from pathlib import Path

from viz_engine.model import files
from viz_engine.model.config_keys import MAX_CHARS
from viz_engine.numbers import grouped
from viz_engine.paths import read_file
from viz_engine.text import UserError

TIMEOUT_S = 8.0


def read_text(model: str) -> str:
    """config.json of a folder, or of a model on the hub (`owner/name`), which is asked where it is
    not kept here already. Raises UserError with what is wrong."""
    name = model.strip()
    if not name or "\0" in name or len(name) > 1000:
        raise UserError("error.model_name", model=name[:100])
    if folder := _folder(name):
        return _read(folder / "config.json")
    if not files.is_hub_id(name):
        raise UserError("error.model_name", model=name[:100])
    return _read(Path(_fetch(name)))


def _folder(name: str) -> Path | None:
    try:
        folder = Path(name).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # no such user, a name too long
        return None


def _read(path: Path) -> str:
    try:
        return read_file(path, MAX_CHARS).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError("error.model_no_config", folder=path.parent.name) from None
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            params = {"chars": grouped(path.stat().st_size), "limit": grouped(MAX_CHARS)}
            raise UserError("error.size_too_large", **params) from None
        raise UserError("error.model_bad_config", folder=path.parent.name) from None


def _fetch(name: str) -> str:
    from huggingface_hub import hf_hub_download

    try:
        return hf_hub_download(name, "config.json", etag_timeout=TIMEOUT_S)
    except Exception as error:  # offline, unknown, private, a proxy's page: all mean not here
        reason = type(error).__name__
        raise UserError("mem.error_hub", model=name[:100], reason=reason) from None
