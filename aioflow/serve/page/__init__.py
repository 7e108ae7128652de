"""The page at `/`: how the models are, in a browser.

Its files are plain HTML, CSS and JavaScript, sent as they lie here. Nothing of a model is written into them: the script
asks for it (`/status`), and puts it on the page as text.
"""

from __future__ import annotations

from aioflow.serve.page.answers import Page

__all__ = ["Page"]
