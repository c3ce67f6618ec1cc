"""HTML as text: elements with escaped attributes and content, tables that scroll, and the style.

`Html` is what has been escaped already; everything else is text, and is escaped here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--line:#c9d1d9;--quiet:#57606a;--bad:#b31d28;
--badpaper:#ffebe9;--doubt:#7a4b00;--doubtpaper:#fff8c5;--good:#116329;--goodpaper:#dafbe1}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--line:#3d444d;--quiet:#9198a1;
--bad:#ff8f86;--badpaper:#3c1618;--doubt:#e9c46a;--doubtpaper:#33270a;--good:#7ee2a8;--goodpaper:#0f2f1b}}
*{box-sizing:border-box}
body{font:16px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;
max-width:76rem;padding:1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem}h3{font-size:1rem;margin:0 0 .3rem}
p,ul{margin:.3rem 0}a{color:inherit}a:focus-visible,[tabindex]:focus-visible{outline:3px solid #4493f8}
.quiet{color:var(--quiet)}.mono{font-family:ui-monospace,monospace;font-size:.85em;overflow-wrap:anywhere}
.verdict{padding:.6rem .8rem;border-radius:.4rem;font-weight:bold;border:1px solid}
.bad{color:var(--bad);background:var(--badpaper)}.doubt{color:var(--doubt);background:var(--doubtpaper)}
.good{color:var(--good);background:var(--goodpaper)}
.bad-text{color:var(--bad);font-weight:bold}.doubt-text{color:var(--doubt)}
nav ul{display:flex;flex-wrap:wrap;gap:.3rem .9rem;padding:0;list-style:none}
article{border:1px solid var(--line);border-radius:.4rem;padding:.7rem .8rem;margin:.7rem 0}
article article{margin:.7rem 0 0}
.problem{border-left:.35rem solid var(--bad)}.explained{border-left:.35rem solid var(--line)}
.watched{border-left:.35rem solid var(--doubt)}
.bar{display:flex;height:1.3rem;border:1px solid var(--line);border-radius:.2rem;overflow:hidden;
margin:.4rem 0 .2rem;background:var(--paper)}
.bar span{min-width:2px}
.key{display:flex;flex-wrap:wrap;gap:.1rem 1rem;padding:0;list-style:none;font-size:.9rem}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border:1px solid var(--line)}
.pod0{background:#2f7fd6}.pod1{background:#1a9c8b}.pod2{background:#8a63d2}.pod3{background:#5a9a2f}
.pod4{background:#c2588f}.pod5{background:#3aa6c9}.host{background:#a06a2c}.system{background:#7d8590}
.orphan{background:#d1242f}
.unattributed{background:repeating-linear-gradient(45deg,#d1242f 0 4px,#ffb3ad 4px 8px)}
.unknown{background:repeating-linear-gradient(45deg,#bf8700 0 4px,#ffe9a8 4px 8px)}
.rest{background:#b1bac4}.free{background:transparent}
.scroll{overflow-x:auto;margin:.5rem 0}table{border-collapse:collapse;font-size:.9rem}
td,th{border:1px solid var(--line);padding:.2rem .5rem;text-align:left;white-space:nowrap}
td.wrap{white-space:normal;min-width:16rem}td.number{text-align:right}
""".replace("\n", "")


class Html(str):
    """Markup that is finished: what in it came from elsewhere is escaped."""

    __slots__ = ()


def text(what: str) -> Html:
    """Text, escaped. A str that is Html stays as it is."""
    return what if isinstance(what, Html) else Html(escape(what))


def element(tag: str, *content: str, **attributes: str) -> Html:
    """An element. An attribute's name may end in an underscore, and one inside it is a hyphen."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(what)}"' for name, what in attributes.items()
    )
    return Html(f"<{tag}{named}>{joined(content)}</{tag}>")


def joined(parts: Iterable[str], by: str = "") -> Html:
    """Several pieces, one after the other."""
    return Html(by.join(text(part) for part in parts))


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, wrap: Sequence[str] = ()
) -> Html:
    """A table that scrolls sideways by touch and by keyboard. Columns named in `wrap` break their lines."""
    kinds = ["wrap" if name in wrap else "" for name in head]
    first = element("tr", *(element("th", name, scope="col") for name in head))
    lines = [first, *(element("tr", *map(_cell, row, kinds)) for row in rows)]
    inside = element("table", *lines, aria_label=caption)
    return element("div", inside, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(what: str, kind: str) -> Html:
    return element("td", what, class_=kind) if kind else element("td", what)
