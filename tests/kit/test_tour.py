"""The tour: what it measures is what happened, and a strategy that trains something else is found out."""

import base64
import json
import math
import re
import textwrap
import xml.etree.ElementTree as ElementTree

import pytest

from shardlab.models import TransformerConfig
from shardlab.observe import all_reduce_bytes
from shardlab.tour import Job, run, run_tour
from shardlab.tour.job import Strategy
from shardlab.tour.outcome import put_together

TINY = Job(
    config=TransformerConfig(vocab=1024, hidden=32, layers=1, heads=2, kv_heads=1, ffn=64, sequence=32),
    rows=8,
    steps=6,
)
HEAD = """
    import torch.distributed as dist
    from shardlab import NotAttempted
    from shardlab.models import next_token_loss
    from shardlab.tour import strategy

    def trainer(job, share=lambda batch: batch, before_update=lambda parameters: None):
        model = job.model()
        optimizer = job.optimizer(model.parameters())

        def step(batch):
            loss = next_token_loss(model(share(batch)), share(batch))
            loss.backward()
            before_update(list(model.parameters()))
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step

    def my_half(batch):
        return batch.chunk(2)[dist.get_rank()]

    def add_up(parameters):
        for parameter in parameters:
            dist.all_reduce(parameter.grad)

    @strategy("yardstick", ranks=1)
    def yardstick(job):
        '''One process.'''
        return trainer(job)
"""


@pytest.fixture
def tour_of(monkeypatch, tmp_path):
    """Run a tiny tour of strategies that a test writes; gives the exit code and the page."""

    def tour(source: str) -> tuple[int, str]:
        (tmp_path / "own_strategies.py").write_text(textwrap.dedent(HEAD) + textwrap.dedent(source))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(run, "STRATEGIES", "own_strategies")
        code = run_tour(TINY)
        page = tmp_path / "tour.html"
        return code, page.read_text() if page.exists() else ""

    return tour


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The tour of the registered strategies on the reference submission: exit code, folder and what was printed."""
    folder = tmp_path_factory.mktemp("tour")
    with pytest.MonkeyPatch.context() as patch, (folder / "printed").open("w") as printed:
        patch.chdir(folder)
        patch.setattr("sys.stdout", printed)
        code = run_tour(TINY)
    return code, folder


def test_all_strategies_train_the_same(reference):
    code, folder = reference
    printed = (folder / "printed").read_text()
    assert code == 0
    assert "All losses agree: largest relative difference" in printed
    for name in ("one process", "all-reduce, torch", "all-reduce, lesson 1.3", "DDP, torch", "DDP, lesson 2.1"):
        assert re.search(rf"^ {re.escape(name)} +[14] ", printed, re.MULTILINE), f"no row for {name} in\n{printed}"
    assert "open tour.html in a browser" in printed
    assert "make lab" in printed


def test_every_rank_sends_what_averaging_its_gradients_takes(reference):
    outcomes = json.loads((reference[1] / "results" / "tour.json").read_text())["data"]["outcomes"]
    one, *many = outcomes
    expected = all_reduce_bytes(4 * TINY.config.parameters, ranks=4)
    assert one["sent_bytes"] == 0
    for outcome in many:
        # DDP rounds each of its buckets down by itself
        assert outcome["sent_bytes"] == pytest.approx(expected, abs=8), outcome["strategy"]["name"]


def test_memory_is_split_into_kinds_and_activations_shrink_with_the_rows(reference):
    outcomes = json.loads((reference[1] / "results" / "tour.json").read_text())["data"]["outcomes"]
    model_bytes = 4 * TINY.config.parameters
    for outcome in outcomes:
        kinds = outcome["peak_by_kind"]
        assert sum(kinds.values()) == outcome["peak_bytes"]
        assert kinds["parameter"] == model_bytes
        assert kinds["optimizer"] == pytest.approx(2 * model_bytes, rel=0.01)
        if outcome["strategy"]["name"].startswith("all-reduce"):
            ratio = kinds["activation"] / outcomes[0]["peak_by_kind"]["activation"]
            assert ratio == pytest.approx(1 / 4, rel=0.05)


def test_the_page_stands_alone_and_its_pictures_are_whole(reference):
    page = (reference[1] / "tour.html").read_text()
    assert not re.search(r"<(script|link)|url\(|@import|src=\"(?!data:image/svg\+xml)", page)
    pictures = re.findall(r'<img alt="[^"]+" src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert len(pictures) == 4
    for picture in pictures:
        assert ElementTree.fromstring(base64.b64decode(picture)).tag.endswith("svg")
    assert page.count("<dt>") == page.count("<dd>") == 5
    assert "labs/day1_one_gpu_to_many/collectives.py" in page
    assert 'class="verdict">All losses agree' in page


def test_strategies_that_train_something_else_are_named(tour_of, capsys):
    code, page = tour_of("""
    @strategy("average", ranks=2)
    def average(job):
        '''Right.'''
        def average_up(parameters):
            add_up(parameters)
            for parameter in parameters:
                parameter.grad /= 2
        return trainer(job, my_half, average_up)

    @strategy("sum", ranks=2)
    def sum_instead(job):
        '''Forgets to divide: with AdamW that hardly shows.'''
        return trainer(job, my_half, add_up)

    @strategy("silence", ranks=2)
    def silence(job):
        '''Never communicates.'''
        return trainer(job, my_half)

    @strategy("not a number", ranks=1)
    def not_a_number(job):
        '''Diverges.'''
        step = trainer(job)
        return lambda batch: step(batch) * float("nan")
    """)
    assert code == 1
    assert "Not the losses of yardstick (more than 1e-05 off): sum, silence, not a number." in capsys.readouterr().out
    assert 'class="verdict bad">Not the losses of yardstick' in page
    assert page.count("<td class=bad>") == 3


def test_ranks_without_a_loss_do_not_count_and_unwritten_lessons_are_left_out(tour_of, capsys):
    code, page = tour_of("""
    @strategy("last stage", ranks=2)
    def last_stage(job):
        '''Like a pipeline: only the last rank has the loss.'''
        step = trainer(job)
        return (lambda batch: (step(batch), None)[1]) if dist.get_rank() == 0 else step

    @strategy("to be written", ranks=2, lesson="2.1")
    def to_be_written(job):
        '''An exercise.'''
        raise NotAttempted("2.1 DataParallel")
    """)
    assert code == 0
    printed = capsys.readouterr().out
    assert re.search(r"to be written +left out: DataParallel \(lesson 2\.1\) is not attempted", printed)
    assert "to be written" not in page
    assert "last stage" in page


def test_a_strategy_that_breaks_ends_the_tour_with_the_ranks_report(tour_of, capsys):
    code, page = tour_of("""
    @strategy("broken", ranks=2)
    def broken(job):
        '''Raises on one rank.'''
        if dist.get_rank() == 1:
            raise RuntimeError("shapes do not fit")
        return trainer(job)
    """)
    assert code == 1
    printed = capsys.readouterr().out
    assert "A strategy failed." in printed
    assert "shapes do not fit" in printed
    assert "own_strategies.py" in printed
    assert page == ""


def test_an_outcome_is_put_together_from_its_ranks():
    ranks = [
        {"device": "cpu", "losses": [None, 1.0], "seconds": 2.0, "sent_bytes": 3, "peak_bytes": 5, "peak_by_kind": {}},
        {"device": "cpu", "losses": [None, 3.0], "seconds": 4.0, "sent_bytes": 1, "peak_bytes": 9, "peak_by_kind": {}},
    ]
    outcome = put_together(Strategy("f", "f", 2, "", ""), TINY, ranks)
    assert math.isnan(outcome.losses[0])
    assert outcome.losses[1] == 2.0
    assert outcome.to_data()["losses"] == [None, 2.0]
    assert outcome.tokens_per_second == 8 * 32 / 4.0
    assert (outcome.sent_bytes, outcome.peak_bytes) == (3, 9)
    assert outcome.difference(outcome) == math.inf


def test_a_job_too_short_to_be_timed_is_refused():
    with pytest.raises(ValueError, match="4 or more, not 3"):
        Job(steps=3)
