"""HTML from the templates of this room: what a page shows is escaped, and a name that a template misspells is an error.

A page stands alone: no network, no script (its own policy forbids both), light or dark as the reader likes it.
"""

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from shardlab.grade.gradebook.text import decimal, one_line, plain

CODE = re.compile(r"``([^`]+)``|`([^`]+)`")


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "decimal": decimal,
        "line": one_line,
        "plain": plain,
        "prose": prose,
        "duration": duration,
        "width": width,
    }
    return made


def render(template: str, **values: object) -> str:
    return environment().get_template(template).render(values)


def prose(text: str) -> Markup:
    """Text of a docstring: what stands between backticks is code.

    >>> prose("`f` of <x>")
    Markup('<code>f</code> of &lt;x&gt;')
    """
    return Markup(CODE.sub(lambda found: f"<code>{found[1] or found[2]}</code>", str(escape(text))))


def duration(seconds: float) -> str:
    """Seconds in the unit that fits.

    >>> duration(0.44), duration(75), duration(8005)
    ('0.4 s', '1.2 min', '2.2 h')
    """
    unit, name = next(
        (unit, name) for unit, name in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= unit or unit == 1
    )
    return f"{seconds / unit:.1f} {name}"


def width(part: object, whole: object) -> str:
    """`part` of `whole` as a width for CSS, between 0 and 100 %."""
    share = float(part / whole) if whole else 0.0
    return f"{100 * min(1.0, max(0.0, share)):.1f}%"
