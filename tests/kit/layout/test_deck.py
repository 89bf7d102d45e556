"""What is wrong with a deck is said, slide by slide, and what only looks wrong is left alone."""

import re

import pytest

from shardlab.show import RANK_COLOURS
from shardlab.slides import Deck
from shardlab.syllabus import ROOT

FRONT = "---\nmarp: true\ntheme: shardlab\nmath: mathjax\n---\n"
NOTE = "<!-- Here the speaker says in full and calm sentences what this slide is about, and why it matters. -->"
SLIDE = f"\n## A heading\n\n{NOTE}\n"


@pytest.fixture
def deck(tmp_path):
    def write(*slides: str, front: str = FRONT) -> Deck:
        path = tmp_path / "1_x.md"
        path.write_text(front + "\n---\n".join(slides))
        return Deck(path)

    return write


@pytest.mark.parametrize("slides", [12, 20])
def test_a_good_deck_has_no_problems(deck, slides):
    assert deck(*[SLIDE] * slides).problems() == []


@pytest.mark.parametrize("slides", [11, 21])
def test_too_few_or_too_many_slides(deck, slides):
    assert deck(*[SLIDE] * slides).problems() == [f"1_x.md: {slides} slides, a deck has 12 to 20"]


@pytest.mark.parametrize(
    ("slide", "problem"),
    [
        ("\n## No note\n", "has 0 words"),
        ("\n<!-- _class: lead -->\n# A directive is no note\n", "has 0 words"),
        ("\n## Short\n\n<!-- A ring. -->\n", "has 2 words"),
        (f"\n## Unfinished\n\n{NOTE.replace('. -->', ' -->')}\n", "full sentence"),
        (f"\n```\n{NOTE}\n```\n", "has 0 words"),
        (f"\n{NOTE}\n\nText\n---\n\nMore\n", "makes a heading"),
        (f"\n{NOTE}\n\n- $$x$$\n", "printed raw"),
        (f"\n{NOTE}\n\nThe ratio is @@RATIO.\n", "@@RATIO is still to be filled in"),
        (f"\n{NOTE}\n\n![](figures/none.svg)\n", "no picture figures/none.svg"),
        (f"\n{NOTE}\n\n![](https://example.org/x.svg)\n", "fetched from the network"),
    ],
)
def test_a_bad_slide_is_named(deck, slide, problem):
    (found,) = deck(*[SLIDE] * 11, slide).problems()
    assert problem in found


@pytest.mark.parametrize(
    "slide",
    [
        f"\n{NOTE}\n\n```yaml\na: 1\n\n---\n\nb: 2\n```\n",
        f"\n{NOTE}\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
        f"\n{NOTE}\n\n```markdown\n![](figures/none.svg)\n- $$x$$\n```\n",
    ],
    ids=["rule in code", "table", "example in code"],
)
def test_what_only_looks_wrong_passes(deck, slide):
    assert deck(*[SLIDE] * 11, slide).problems() == []


def test_front_matter_that_loses_the_look(deck):
    problems = deck(*[SLIDE] * 12, front="---\nmarp: true\nmath: katex\n---\n").problems()
    assert [problem.partition("`")[2] for problem in problems] == ["theme: shardlab`", "math: mathjax`"]


def test_the_theme_has_the_colours_of_the_figures():
    css = (ROOT / "slides" / "theme" / "shardlab.css").read_text()
    colours = dict(re.findall(r"--rank-(\d): (#\w+);", css))
    assert [colours[str(rank)] for rank in range(8)] == [colour.lower() for colour in RANK_COLOURS]
