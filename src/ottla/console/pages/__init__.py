"""The console's own pages, one module each. A new page is a module with a `Page`, listed here."""

from typing import Final

from ottla.console.page import Page
from ottla.console.pages import cluster, groups, records, security, topic, topics, transactions

PARTS_OF_TOPICS: Final = (topic.__name__, records.__name__)  # their routes belong to the page of the list

PAGES: Final[tuple[Page, ...]] = (cluster.page, topics.page, groups.page, transactions.page, security.page)
"""In the order of the navigation."""
