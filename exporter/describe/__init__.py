"""The command `describe`: who is on which GPU, and what is wrong, in words. One look, no server.

In: a Report of one look at this node, or the metrics of a running exporter. Both become a `View`, and that
becomes text or JSON. A single look has no ages: it says what holds now and never that a finding is active.
Nothing here decides what is wrong.
"""

from exporter.describe.fetch import FetchError, fetch
from exporter.describe.looked import LONGEST_WAIT, look
from exporter.describe.scraped import of_metrics
from exporter.describe.words import as_json, as_text
from exporter.view import Verdict, View, of_report

__all__ = [
    "LONGEST_WAIT",
    "FetchError",
    "Verdict",
    "View",
    "as_json",
    "as_text",
    "fetch",
    "look",
    "of_metrics",
    "of_report",
]
