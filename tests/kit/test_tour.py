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
from shardlab.syllabus import ROOT
from shardlab.tour import Job, run
from shardlab.tour.job import Strategy
from shardlab.tour.outcome import put_together
from shardlab.tour.run import run_tour

TINY = Job(
    config=TransformerConfig(vocab=1024, hidden=32, layers=2, heads=4, kv_heads=2, ffn=64, sequence=32),
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
LADDER = """
    from shardlab.tour import Rung

    SHOWN = {"start": "As it comes.", "faster": "Better.", "16 bits": "Fewer bits."}

    def climb():
        yield Rung("start", SHOWN["start"], "", 2.0, 4 * 2**20, 6.0)
        yield Rung("faster", SHOWN["faster"], "", 0.5, 2 * 2**20, 6.0)
        yield Rung("16 bits", SHOWN["16 bits"], "no units for it")
"""


@pytest.fixture
def tour_of(monkeypatch, tmp_path):
    """Run a tiny tour of strategies that a test writes; gives the exit code and the page."""

    def tour(source: str, ladder: str = LADDER) -> tuple[int, str]:
        (tmp_path / "own_strategies.py").write_text(textwrap.dedent(HEAD) + textwrap.dedent(source))
        (tmp_path / "own_ladder.py").write_text(textwrap.dedent(ladder))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(run, "STRATEGIES", "own_strategies")
        monkeypatch.setattr(run, "LADDER", "own_ladder")
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
    for name in registered_names():
        assert re.search(rf"^ {re.escape(name)} +[124] ", printed, re.MULTILINE), f"no row for {name} in\n{printed}"
    assert "open tour.html in a browser" in printed
    assert "make lab" in printed


def registered_names() -> list[str]:
    """The strategies of the tour, read off their decorators: the judge does not import labs."""
    names = re.findall(r'^@strategy\("([^"]+)"', (ROOT / "labs" / "tour_strategies.py").read_text(), re.MULTILINE)
    assert "one process" in names
    return names


def test_one_process_alone_climbs_the_ladder(reference):
    folder = reference[1]
    rungs = json.loads((folder / "results" / "tour.json").read_text())["data"]["ladder"]
    by_name = {rung["name"]: rung for rung in rungs}
    names = ("start", "SDPA", "flash_attention", "chunked_cross_entropy")
    start, torch_has, own, chunked = (by_name[name] for name in names)
    assert all(rung["is_right"] for rung in rungs)
    assert start["peak_bytes"] > 1.5 * own["peak_bytes"] > 2 * chunked["peak_bytes"]
    assert min(torch_has["seconds"], own["seconds"]) < start["seconds"]
    assert f"{own['loss']:.5f}" in (folder / "printed").read_text()


@pytest.mark.parametrize("first", ["", 'yield Rung("start", SHOWN["start"], "", 2.0, 4 * 2**20, 6.0)'])
def test_rungs_that_nobody_has_written_are_left_out(tour_of, capsys, first):
    ladder = f"""
    from shardlab import NotAttempted
    from shardlab.tour import Rung

    SHOWN = {{"start": "As it comes.", "faster": "Better."}}

    def climb():
        {first}
        raise NotAttempted("1.2 faster")
        yield
    """
    code, page = tour_of("", ladder)
    printed = capsys.readouterr().out
    assert code == 0
    assert len(re.findall(r"left out: faster \(lesson 1.2\)", printed)) == (1 if first else 2)
    assert ("One process alone, one change at a time, each on top" in printed) is bool(first)
    assert "Left out here: faster (lesson 1.2) is not attempted yet" in page
    assert ("Step time and peak memory of one process" in page) is bool(first)


def outcomes_named(folder, *prefixes: str) -> list[dict]:
    """What became of the strategies whose names begin so."""
    outcomes = json.loads((folder / "results" / "tour.json").read_text())["data"]["outcomes"]
    return [outcome for outcome in outcomes if outcome["strategy"]["name"].startswith(prefixes)]


def test_every_rank_sends_what_averaging_its_gradients_takes(reference):
    [one] = outcomes_named(reference[1], "one process")
    assert one["sent_bytes"] == 0
    averaging = all_reduce_bytes(4 * TINY.config.parameters, ranks=4)
    for outcome in outcomes_named(reference[1], "all-reduce", "DDP", "ZeRO-1", "ZeRO-2"):
        # DDP rounds each of its buckets down by itself
        assert outcome["sent_bytes"] == pytest.approx(averaging, abs=8), outcome["strategy"]["name"]
    for outcome in outcomes_named(reference[1], "ZeRO-3", "FSDP"):
        assert outcome["sent_bytes"] > averaging, outcome["strategy"]["name"]  # parameters travel too, some twice
    [context] = outcomes_named(reference[1], "CP")
    tokens = TINY.tokens_per_step // 4
    keys = (
        4 * 2 * tokens * TINY.config.kv_heads * TINY.config.head_dim
    )  # bytes of a rank's keys and values, in one layer
    round_the_ring = TINY.config.layers * 3 * 3 * keys  # three hops: keys and values, again in backward, and gradients
    assert context["sent_bytes"] == pytest.approx(averaging + round_the_ring, abs=16)  # and one number, of labels


def test_two_dimensions_send_less_than_matrices_shared_by_all(reference):
    [tensor] = outcomes_named(reference[1], "TP, lesson 3.1")
    [both] = outcomes_named(reference[1], "TP x PP")
    assert 0 < both["sent_bytes"] < tensor["sent_bytes"]


def test_memory_is_split_into_kinds_and_activations_shrink_with_the_rows(reference):
    model_bytes = 4 * TINY.config.parameters
    [one] = outcomes_named(reference[1], "one process")
    for outcome in outcomes_named(reference[1], ""):
        assert sum(outcome["peak_by_kind"].values()) == outcome["peak_bytes"]
    for outcome in outcomes_named(reference[1], "one process", "all-reduce", "DDP"):
        assert outcome["peak_by_kind"]["parameter"] == model_bytes
        assert outcome["peak_by_kind"]["optimizer"] == pytest.approx(2 * model_bytes, rel=0.01)
    for outcome in outcomes_named(reference[1], "ZeRO", "FSDP"):
        assert outcome["peak_by_kind"]["optimizer"] == pytest.approx(2 * model_bytes / 4, rel=0.01)
    for outcome in outcomes_named(reference[1], "all-reduce"):
        ratio = outcome["peak_by_kind"]["activation"] / one["peak_by_kind"]["activation"]
        assert ratio == pytest.approx(1 / 4, rel=0.05)


def test_the_page_stands_alone_and_its_pictures_are_whole(reference):
    page = (reference[1] / "tour.html").read_text()
    assert not re.search(r"<(script|link)|url\(|@import|src=\"(?!data:image/svg\+xml)", page)
    pictures = re.findall(r'<img alt="[^"]+" src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert len(pictures) == 5
    for picture in pictures:
        assert ElementTree.fromstring(base64.b64decode(picture)).tag.endswith("svg")
    rungs = json.loads((reference[1] / "results" / "tour.json").read_text())["data"]["ladder"]
    assert page.count("<dt>") == page.count("<dd>") == len(registered_names()) + len(rungs)
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


def test_a_strategy_with_a_model_of_its_own_has_a_yardstick_of_its_own(tour_of, capsys):
    twice = """
    @strategy("twice", ranks=1, like="twice")
    def twice(job):
        '''Another loss.'''
        step = trainer(job)
        return lambda batch: 2 * step(batch)

    @strategy("twice, again", ranks=2, like="twice")
    def twice_again(job):
        '''Every rank does all of it.'''
        return twice(job)
    """
    code, page = tour_of(twice)
    assert code == 0
    assert "All losses agree" in page
    once = """
    @strategy("once", ranks=1, like="twice")
    def once(job):
        '''Not twice the loss.'''
        return trainer(job)
    """
    capsys.readouterr()
    code, page = tour_of(twice + once)
    assert code == 1
    assert "Not the losses of twice (more than 1e-05 off): once." in capsys.readouterr().out
    assert page.count("<td class=bad>") == 1


def test_a_rung_that_loses_the_losses_is_named(tour_of, capsys):
    wrong = LADDER + """        yield Rung("wrong", "Trains something else.", "", 0.1, 2**20, 5.0, False)\n"""
    code, page = tour_of("", wrong)
    assert code == 1
    printed = capsys.readouterr().out
    assert "Not the losses of the first rung of the ladder: wrong." in printed
    assert re.search(r"faster +loss 6\.00000 +4\.00 times as fast", printed)
    assert re.search(r"16 bits +left out: no units for it", printed)
    assert "Left out here: no units for it." in page
    assert 'class="verdict bad"' in page


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
