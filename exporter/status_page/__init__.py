"""The page at `/`, for the person without Grafana: a Report comes in, one HTML document goes out.

It holds no script and loads nothing. All text in it is escaped, whoever chose it (truth rule 6).
"""

from exporter.status_page.page import page

__all__ = ["page"]
