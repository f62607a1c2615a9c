"""Where the program's own files lie, where it keeps what it makes, how a stranger's are read.

Try it: `python -c "from viz_engine.paths import cache_folder; print(cache_folder())"`
"""

import errno
import os
import stat
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "assets"


def cache_folder() -> Path:
    """Where converted models and compiled kernels are kept: SECOND_TOKEN_CACHE, or the user's
    cache folder."""
    if chosen := os.environ.get("SECOND_TOKEN_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "second-token"


def read_file(path: Path, most_bytes: int) -> bytes:
    """The bytes of a regular file. Raises OSError where it is no such file (a FIFO would keep the
    reader for ever, a device never ends) or holds more than `most_bytes` (EFBIG)."""
    if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: that alone may wait
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data
