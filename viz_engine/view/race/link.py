"""The settings of a race in a link: JSON as URL-safe base64.

Try it: `python -c "from viz_engine.run.events import RunSettings; \
from viz_engine.run.race import RaceSettings; from viz_engine.view.race import link; \
print(link.encoded(RaceSettings(run=RunSettings(model='m', prompts=('Hi',)))))"`
"""

import base64
import json

from viz_engine.run import checks
from viz_engine.run.codec import settings_from_dict, settings_to_dict
from viz_engine.run.race import RaceSettings
from viz_engine.text import UserError

MAX_CHARS = 6000  # browsers and proxies cut longer links


def encoded(settings: RaceSettings) -> str | None:
    """Settings for a link; None where they are too long for one."""
    text = json.dumps(settings_to_dict(settings), separators=(",", ":"))
    made = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    return made if len(made) <= MAX_CHARS else None


def decoded(text: str) -> RaceSettings:
    """The settings in a link. Raises UserError where they cannot be read."""
    try:
        data = json.loads(base64.urlsafe_b64decode(text[:MAX_CHARS].encode() + b"=="))
        settings = settings_from_dict(data, RaceSettings)
        checks.check_settings(settings.run)
        if not settings.run.prompts:
            raise ValueError("no prompt")
    except (UserError, ValueError, TypeError, AttributeError, RecursionError):
        raise UserError("race.link_broken") from None
    return settings
