"""Where the program's own files lie, and where it keeps what it makes.

Try it: `python -c "from viz_engine.paths import cache_folder; print(cache_folder())"`
"""

import os
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
