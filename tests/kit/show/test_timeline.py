"""The timeline: to scale, stacked, escaped, standalone and repeatable."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from shardlab.show import Timeline, save_timelines
from shardlab.show.timeline_svg import nice_ticks

SVG = "{http://www.w3.org/2000/svg}"


def two_lanes() -> Timeline:
    timeline = Timeline("Two ranks <and> one link", unit="ms")
    timeline.add("rank 0", 0, 10, "forward", "forward")
    timeline.add("rank 0", 10, 30, "backward", "backward")
    timeline.add("rank 0", 15, 25, "bucket & 0", "communication", detail="25 MiB")
    timeline.add("rank 1", 10, 40, "B0", "backward")
    return timeline


def bars(svg: str) -> dict[str, dict]:
    """Position and hover text of every bar, by the first word of its hover text."""
    found = {}
    for rectangle in ElementTree.fromstring(svg).iter(f"{SVG}rect"):
        if rectangle.get("class") == "bar":
            hover = rectangle.find(f"{SVG}title").text
            found[hover.split(" (")[0]] = {
                "hover": hover,
                **{name: float(rectangle.get(name)) for name in ("x", "y", "width")},
            }
    return found


def test_bars_are_to_scale_and_know_their_times():
    drawn = bars(two_lanes().svg())
    assert drawn["backward"]["width"] == pytest.approx(2 * drawn["forward"]["width"], rel=1e-3)
    assert drawn["backward"]["x"] == pytest.approx(drawn["forward"]["x"] + drawn["forward"]["width"], abs=0.02)
    assert drawn["B0"]["x"] == drawn["backward"]["x"]
    assert drawn["bucket & 0"]["hover"] == "bucket & 0 (communication), rank 0: 15 to 25 ms, 10 ms\n25 MiB"


def test_spans_that_overlap_are_stacked_and_others_share_a_row():
    drawn = bars(two_lanes().svg())
    assert drawn["forward"]["y"] == drawn["backward"]["y"] < drawn["bucket & 0"]["y"] < drawn["B0"]["y"]


def test_legend_lists_each_category_once_and_lanes_stay_in_order():
    timeline = two_lanes()
    timeline.add_lane("rank 2")
    timeline.add_lane("rank 0")
    texts = [text.text for text in ElementTree.fromstring(timeline.svg()).iter(f"{SVG}text")]
    assert [text for text in texts if text.startswith("rank")] == ["rank 0", "rank 1", "rank 2"]
    assert texts[1:4] == ["forward", "backward", "communication"]
    assert "40 ms" in texts


def test_a_label_is_left_out_where_it_does_not_fit():
    timeline = Timeline("narrow")
    timeline.add("rank 0", 0, 1000, "long", "forward")
    timeline.add("rank 0", 1000, 1001, "does not fit", "backward")
    labels = [text.text for text in ElementTree.fromstring(timeline.svg()).iter(f"{SVG}text")]
    assert "long" in labels
    assert "does not fit" not in labels
    assert bars(timeline.svg())["does not fit"]["width"] >= 1


def test_categories_of_a_pictures_own_get_colours_of_their_own():
    timeline = two_lanes()
    timeline.add("rank 1", 40, 50, "log", "logging")
    timeline.add("rank 1", 50, 60, "save", "checkpoint")
    colours = re.findall(r'class="bar".*?fill="(#\w+)"', timeline.svg())
    assert len(set(colours)) == 5


def test_same_spans_same_bytes_and_nothing_from_the_network(tmp_path):
    page = two_lanes().save(tmp_path / "deep" / "page.html").read_text()
    assert page == two_lanes().html()
    assert "<title>Two ranks &lt;and&gt; one link</title>" in page
    assert not re.search(r"(href|src|url\(|@import|<script)", page)
    assert set(re.findall(r"https?://[^\"]+", page)) == {"http://www.w3.org/2000/svg"}
    assert two_lanes().save(tmp_path / "a.svg").read_bytes() == two_lanes().save(tmp_path / "b.svg").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "b.svg", "deep"]


def test_styles_stay_inside_the_picture():
    """Inlined in a page, a rule that does not begin with .timeline would restyle the page."""
    rules = re.findall(r"^(.+?) \{", re.search(r"<style>(.*?)</style>", two_lanes().svg(), re.DOTALL)[1], re.MULTILINE)
    assert rules
    assert all(rule.startswith(".timeline ") for rule in rules)


@pytest.mark.parametrize(("start", "end"), [(2, 1), (float("nan"), 1), (0, float("inf"))])
def test_a_span_that_cannot_be_is_refused(start, end):
    with pytest.raises(ValueError, match="span 'F0' in lane 'rank 0' cannot last from"):
        Timeline("bad").add("rank 0", start, end, "F0", "forward")


def test_nothing_to_draw_and_unknown_endings_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no span yet"):
        Timeline("empty").svg()
    with pytest.raises(ValueError, match=r"saved as \.svg or \.html, got 'x\.gif'"):
        two_lanes().save(tmp_path / "x.gif")


def test_an_instant_is_drawn():
    timeline = Timeline("instant")
    timeline.add("rank 0", 0, 0, "failure", "idle")
    assert bars(timeline.svg())["failure"]["width"] == 1


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 8, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (0, 0.007, [0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007]),
        (-3, 90, [0, 20, 40, 60, 80]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_numbers(begin, end, expected):
    assert nice_ticks(begin, end) == expected


def test_a_timeline_plays_only_when_asked():
    still, playing = two_lanes().svg(), two_lanes().svg(play_seconds=4)
    assert bars(still) == bars(playing)
    classes = [rectangle.get("class") for rectangle in ElementTree.fromstring(playing).iter(f"{SVG}rect")]
    assert classes[-2:] == ["curtain", "hand"] and "animation-duration:4s" in playing
    assert not re.search('class="(curtain|hand)"', still)
    for seconds in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="play_seconds"):
            two_lanes().svg(play_seconds=seconds)


def test_several_timelines_share_a_page(tmp_path):
    page = save_timelines(tmp_path / "both.html", "Both <ways>", [two_lanes(), two_lanes()], play_seconds=3).read_text()
    assert page.count("<svg") == 2 and page.count('class="curtain"') == 2
    assert "<title>Both &lt;ways&gt;</title>" in page
