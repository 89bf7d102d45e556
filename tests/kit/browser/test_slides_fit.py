"""No slide holds more than fits: in a real browser nothing reaches into the footer or over the edge."""

import pytest

from shardlab.slides import build
from shardlab.syllabus import lessons

# Per slide, how far its content reaches, in the slide's own pixels (1280 x 720), whatever the zoom of the window.
MEASURE = """() => [...document.querySelectorAll('section[data-marpit-pagination], section[id]')].map(slide => {
  const box = slide.getBoundingClientRect(), scale = box.height / 720;
  const content = [...slide.children].filter(part => getComputedStyle(part).position !== 'absolute');
  const reach = side => Math.max(0, ...content.map(part => part.getBoundingClientRect()[side]));
  return {
    title: slide.querySelector('h1, h2')?.textContent ?? '',
    bottom: (reach('bottom') - box.top) / scale,
    right: (reach('right') - box.left) / scale,
  };
})"""


@pytest.mark.slow
@pytest.mark.parametrize("lesson", [pytest.param(lesson, id=lesson.id) for lesson in lessons(ready=True)])
def test_every_slide_fits(page, lesson, tmp_path):
    built = build([lesson.slides], tmp_path / "slides", pdf=False)
    page.goto(built.html[0].as_uri())
    slides = page.evaluate(MEASURE)
    assert slides
    too_full = [
        f"slide {number} ({slide['title']}): content ends at {slide['right']:.0f} x {slide['bottom']:.0f} px"
        for number, slide in enumerate(slides, start=1)
        if slide["bottom"] > 720 - 46 or slide["right"] > 1280
    ]
    assert not too_full, "; ".join(too_full)
