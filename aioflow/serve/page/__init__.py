"""The status page at `/`: the state of the models, in a browser.

Its files are plain HTML, CSS and JavaScript, served unmodified. They contain no data of models: the script fetches
that (`/status`) and inserts it as text.
"""

from __future__ import annotations

from aioflow.serve.page.status import Page

__all__ = ["Page"]
