"""The console's own pages, one module each. A new page is a module with a `Page`, listed here."""

from typing import Final

from ottla.console.page import Page
from ottla.console.pages import cluster

PAGES: Final[tuple[Page, ...]] = (cluster.page,)
"""In the order of the navigation."""
