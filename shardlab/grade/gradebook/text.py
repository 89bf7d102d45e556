"""Text that others wrote (names, messages, stacks), made fit to show: no escapes, no controls, no end of it."""

import re
from fractions import Fraction

# Sequences that colour, move or rename a terminal: CSI, then OSC and its kin up to their end, then two bytes (ECMA-48).
ESCAPES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x1b\x07]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]")
KEPT = "\n\t"
CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in KEPT}
LINE_ENDS = {0x0D: "\n", 0x85: "\n", 0x2028: "\n", 0x2029: "\n"}
# What turns the direction of all that follows: a name could hide what stands behind it. Letters turn it for themselves.
BIDI_CONTROLS = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)))
SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")  # half a character: no file can hold it
CLEAN = {**CONTROLS, **LINE_ENDS, **BIDI_CONTROLS, **SURROGATES}


def plain(text: str, most: int) -> str:
    """`text` without escapes and control characters, at most about `most` characters: its beginning and its end.

    >>> plain("\\x1b[31mred\\x1b[0m\\r\\nbell\\x07", 100)
    'red\\nbell'
    """
    before = len(text)
    if before <= most and text.isprintable():  # nearly all there is, at a tenth of the cost
        return text
    if before > 4 * most:  # enough to fill the space twice when half of it is escapes
        text = text[: 2 * most] + text[-2 * most :]
    text = ESCAPES.sub("", text).replace("\r\n", "\n").translate(CLEAN)
    if len(text) <= most and before <= 4 * most:
        return text
    begin, end = text[: most * 3 // 4], text[-(most // 4) :]
    return f"{begin}\n... {before - len(begin) - len(end):,} characters are left out here ...\n{end}"


def one_line(text: str, most: int = 500) -> str:
    """`plain` in one line: runs of spaces and line ends become one space.

    >>> one_line(" a\\nname  of two lines ")
    'a name of two lines'
    """
    line = " ".join(plain(text, 2 * most).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def decimal(value: Fraction | int | float) -> str:
    """At most two decimals, none that say nothing.

    >>> decimal(Fraction(7, 3)), decimal(Fraction(5, 2)), decimal(12)
    ('2.33', '2.5', '12')
    """
    return f"{float(value):.2f}".rstrip("0").rstrip(".")


def percent(part: Fraction | int, whole: Fraction | int) -> float:
    """`part` of `whole` in percent with two decimals; of nothing, 0."""
    return round(float(100 * part / whole), 2) if whole else 0.0
