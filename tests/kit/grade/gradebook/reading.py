"""Reads a page the way a browser would, as far as these tests need it."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

# All that these pages may hold: nothing that runs, loads or leads away.
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "h4", "p", "b", "i", "strong", "span", "bdi"),
    *("div", "section", "header", "footer", "ol", "ul", "li", "dl", "dt", "dd", "br", "code", "pre", "details"),
    *("summary", "table", "thead", "tbody", "tr", "th", "td", "svg", "rect", "line", "circle", "path", "text"),
}
VOID = {"meta", "br"}
SHAPES = {"rect", "line", "circle", "path"}


@dataclass
class Page(HTMLParser):
    """What a page holds; it refuses what is not balanced or not allowed."""

    html: str
    words: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.html)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, tag
        for name, value in attributes:
            assert not name.startswith("on") and name not in ("src", "href", "srcset", "action"), (tag, name)
            assert name == "content" or "url(" not in (value or ""), (tag, name, value)
        self.classes += (dict(attributes).get("class") or "").split()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in SHAPES, tag
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def check_standalone(html: str) -> None:
    """No network and no script, not even what an error let through."""
    assert "default-src 'none'" in html
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style
    assert not any(character in html for character in "\0\x1b\x9b\u202e")
    html.encode()
