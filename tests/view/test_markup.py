"""Nothing that a file or a visitor wrote becomes markup."""

from html.parser import HTMLParser

from viz_engine.view import markup
from viz_engine.view.markup import Cell, Number

EVIL = "<script>alert(1)</script>\"' onmouseover=x &amp;"


class Reader(HTMLParser):
    """All tags with their attributes, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_every_text_of_a_number_is_escaped_and_every_tag_closed() -> None:
    number = Number(
        **{name: EVIL for name in ("label", "value", "unit", "tag", "note", "formula", "help")},
        tone=EVIL,
    )
    reader = Reader(markup.cards([number]))
    assert {tag for tag, _ in reader.tags} == {"div", "details", "summary", "span", "b", "u", "p"}
    assert reader.text.count(EVIL) == 6
    assert all(set(attrs) <= {"class", "title", "name"} for _, attrs in reader.tags)
    assert dict(reader.tags)["span"] == {"class": "tag"} or reader.text


def test_every_text_of_a_table_is_escaped_and_only_https_becomes_a_link() -> None:
    rows = [
        [EVIL, Cell(text=EVIL, help=EVIL, tone=EVIL, href="javascript:alert(1)")],
        [Cell(text="a", tone="good"), Cell(text="b", href=f'https://x.org/"{EVIL}')],
    ]
    reader = Reader(markup.table([EVIL], rows))
    links = [attrs for tag, attrs in reader.tags if tag == "a"]
    assert [link["href"] for link in links] == [f'https://x.org/"{EVIL}']
    assert set(links[0]) == {"href", "target", "rel"} and reader.text.count(EVIL) == 3
    assert "script" not in {tag for tag, _ in reader.tags}


def test_the_chosen_row_of_a_table_is_marked() -> None:
    reader = Reader(markup.table(["x"], [["a"], [Cell(text="b", tone="good")]]))
    assert [attrs for tag, attrs in reader.tags if tag == "tr"] == [{}, {}, {"class": "chosen"}]


def test_a_number_opens_to_its_formula_line_by_line() -> None:
    reader = Reader(markup.cards([Number(label="KV", value="1", formula="a = b\nb = 1")]))
    assert [tag for tag, _ in reader.tags].count("p") == 2
    plain = Reader(markup.cards([Number(label="KV", value="1")]))
    assert "details" not in {tag for tag, _ in plain.tags}


def test_notices_say_by_a_sign_what_they_say_by_a_colour() -> None:
    reader = Reader(markup.notices([("good", "Fits", EVIL), ("bad", "Full", "x"), ("", "So", "y")]))
    assert "✓" in reader.text and "!" in reader.text and EVIL in reader.text
