"""config.json and what lies beside it, from where a visitor says: a folder of this machine, or the
hub.

Only small files and the headers of weights are read or fetched; nothing of them runs. It knows
nothing of what stands in them.

Try it: `python -c "from viz_engine.model import files, hub_config; \
print(hub_config.read_text(str(files.default_folder()))[:40])"`
"""

import errno
from pathlib import Path

from viz_engine.model import files, released
from viz_engine.model.config_keys import MAX_CHARS
from viz_engine.numbers import grouped
from viz_engine.paths import read_file
from viz_engine.text import UserError

TIMEOUT_S = 8.0
BESIDE = (released.QUANTIZATION, "model.safetensors.index.json")
MAX_WEIGHT_FILES = 1000


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


def read_files(model: str) -> dict[str, bytes | None]:
    """As `read_text`, with what the folder or the hub has beside it: see `read_folder`. Of the hub
    the index of several weight files, not the weights; None for a file that could not be asked
    for."""
    text = read_text(model)
    if folder := _folder(model.strip()):
        return read_folder(folder)
    found: dict[str, bytes | None] = {released.CONFIG: text.encode()}
    for name in BESIDE:
        try:
            if path := _fetch_beside(model.strip(), name):
                found |= _small(Path(path), name)
        except ConnectionError:
            found[name] = None
    return found


def read_folder(folder: Path) -> dict[str, bytes]:
    """By name: config.json, hf_quant_config.json and the index of the weights, or without an index
    the headers of the safetensors files. Raises UserError where there is no readable config.json
    or a file is not what its name says."""
    found = {released.CONFIG: _read(folder / released.CONFIG).encode()}
    for name in BESIDE:
        found |= _small(folder / name, name)
    if BESIDE[1] not in found:
        paths = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
        found |= {path.name: _header(path) for path in paths[:MAX_WEIGHT_FILES]}
    return found


def _small(path: Path, name: str) -> dict[str, bytes]:
    """A file that need not be there. Raises UserError where it is and cannot be read."""
    try:
        return {name: read_file(path, files.MAX_JSON_BYTES)}
    except FileNotFoundError:
        return {}
    except OSError:
        raise UserError("error.size_beside", name=name) from None


def _header(path: Path) -> bytes:
    """The beginning of a safetensors file, with its header."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            return start + file.read(released.header_len(start) - 8)
    except OSError:
        raise UserError("error.size_beside", name=path.name[:80]) from None


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


def _fetch_beside(model: str, name: str) -> str | None:
    """A file that need not be on the hub, None where it is not. Raises ConnectionError where that
    cannot be known."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return hf_hub_download(model, name, etag_timeout=TIMEOUT_S)
    except LocalEntryNotFoundError as error:  # offline, and never fetched
        raise ConnectionError(name) from error
    except EntryNotFoundError:  # most models have neither
        return None
    except Exception as error:  # a proxy's page, a limit of the hub
        raise ConnectionError(name) from error
