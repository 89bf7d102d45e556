"""Figures, tables, results and files."""

import json
import subprocess
import sys
import threading

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from shardlab import show
from shardlab.show.palette import is_light
from shardlab.show.tables import format_cell

mpl.use("Agg")


@pytest.fixture
def figure():
    with mpl.rc_context():
        show.use_style()
        fig, axes = plt.subplots()
        axes.plot([1, 2, 3], label="rank 0")
        axes.legend()
        yield fig
        plt.close(fig)


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_same_figure_is_the_same_file(figure, tmp_path, suffix):
    first = show.save_figure(figure, tmp_path / "new" / f"a{suffix}").read_bytes()
    assert first == show.save_figure(figure, tmp_path / f"b{suffix}").read_bytes()
    assert b"Date" not in first
    assert b"Matplotlib v" not in first


def test_another_process_draws_the_same_svg(figure, tmp_path):
    script = f"""
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
from shardlab import show
show.use_style()
fig, axes = plt.subplots()
axes.plot([1, 2, 3], label="rank 0")
axes.legend()
show.save_figure(fig, {str(tmp_path / "other.svg")!r})
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert (tmp_path / "other.svg").read_bytes() == show.save_figure(figure, tmp_path / "own.svg").read_bytes()


def test_the_nth_line_has_the_colour_of_rank_n(figure):
    axes = figure.axes[0]
    for _ in range(8):
        axes.plot([1, 2])
    assert [line.get_color() for line in axes.lines[:8]] == [show.rank_colour(rank) for rank in range(8)]
    assert len(set(show.RANK_COLOURS)) == 8
    assert show.rank_colour(8) == show.rank_colour(0)


def test_other_picture_formats_are_refused(figure, tmp_path):
    with pytest.raises(ValueError, match=r"saved as \.svg or \.png, got 'x\.jpg'"):
        show.save_figure(figure, tmp_path / "x.jpg")


@pytest.mark.parametrize(("colour", "light"), [("#FFFFFF", True), ("#000000", False), ("#4477AA", False)])
def test_ink_is_chosen_by_contrast(colour, light):
    assert is_light(colour) == light


def test_a_table_aligns_numbers_and_prints_brackets_as_they_are(capsys):
    columns = ["algorithm", "size (KiB)", "error"]
    show.table("Speed [of rings]", columns, [["ring [mine]", 4, "1e-7"], ["tree", 65536, "0.001"]])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "Speed [of rings]"
    assert " ring [mine]            4    1e-7" in lines
    assert " tree              65,536   0.001" in lines


def test_a_wide_table_is_not_cut_in_a_log(capsys):
    show.table("wide", [f"a long column name {i}" for i in range(12)], [list(range(12))])
    assert "a long column name 11" in capsys.readouterr().out


def test_on_a_narrow_terminal_lines_break_between_words_only(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    show.table("narrow", ["name", *["a long heading"] * 3], [["ring", 123456, "5.44842", 0.0001234]])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("123,456", "5.44842", "0.0001", "heading", "ring"))


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2 columns"):
        show.table("bad", ["a", "b"], [["only one"]])


def test_only_rank_zero_prints_and_writes(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "1")
    show.table("silent", ["a"], [[1]])
    path = show.write_results("silent", {})
    assert capsys.readouterr().out == ""
    assert not path.exists()


@pytest.mark.parametrize(
    ("cell", "text"),
    [(0.0, "0"), (-2.5, "-2.500"), (99999.4, "99,999"), (0.00001, "1.000e-05"), (7, "7"), ("7", "7")],
)
def test_numbers_are_written_to_four_digits(cell, text):
    assert format_cell(cell) == text


def test_results_carry_their_evidence(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run_ring.py", "--sizes", "4 8"])
    data = {"ratio": np.float32(0.5), "sizes": torch.tensor([1, 2]), "path": tmp_path}
    path = show.write_results("ring", data)
    written = json.loads((tmp_path / "results" / "ring.json").read_text())
    assert path.resolve() == (tmp_path / "results" / "ring.json").resolve()
    assert written["data"] == {"ratio": 0.5, "sizes": [1, 2], "path": str(tmp_path)}
    assert written["command"].endswith("run_ring.py --sizes '4 8'")
    assert written["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert written["machine"]["cores"] >= 1
    assert written["machine"]["memory_gib"] > 0
    assert [entry.name for entry in (tmp_path / "results").iterdir()] == ["ring.json"]


@pytest.mark.parametrize("topic", ["../escape", "", ".hidden", "a/b"])
def test_a_topic_that_is_no_plain_name_is_refused(topic, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="plain name"):
        show.write_results(topic, {})


@pytest.mark.parametrize(("value", "error"), [(float("nan"), ValueError), (object(), TypeError)])
def test_results_that_json_cannot_hold_leave_the_old_file(value, error, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = show.write_results("kept", {"loss": 1.0})
    with pytest.raises(error):
        show.write_results("kept", {"loss": value})
    assert json.loads(path.read_text())["data"] == {"loss": 1.0}


def test_a_reader_never_meets_half_a_file(tmp_path):
    path, contents = tmp_path / "page", ["a" * 100_000, "b" * 100_000]
    show.write_text(path, contents[0])
    writers = [threading.Thread(target=lambda c=c: [show.write_text(path, c) for _ in range(30)]) for c in contents]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        seen.add(path.read_text())
    assert seen <= set(contents)
    assert [entry.name for entry in tmp_path.iterdir()] == ["page"]


def test_importing_show_loads_neither_torch_nor_matplotlib():
    script = (
        "import sys, shardlab.show; print([name for name in ('torch', 'matplotlib', 'rich') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
