"""tour.html: one page that needs nothing else, for someone who has never seen the course."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shardlab.show.results import evidence
from shardlab.syllabus import lesson
from shardlab.tour.figures import draw_all
from shardlab.tour.job import Job
from shardlab.tour.ladder import Rung
from shardlab.tour.next_steps import next_steps
from shardlab.tour.outcome import MIB, Outcome, write_difference, yardsticks

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The tour: one model, {count} ways to train it</title>
<style>
:root {{ color-scheme: light; }}
body {{ margin: 0 auto; max-width: 60rem; padding: 2.5rem 1.25rem 4rem; background: #fff; color: #222;
  font: 17px/1.6 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }}
h1 {{ font-size: 2rem; line-height: 1.2; margin: 0 0 .5rem; }}
h2 {{ font-size: 1.3rem; margin: 2.75rem 0 .5rem; }}
p, li {{ max-width: 44rem; }}
.lead {{ color: #555; }}
.verdict {{ margin: 1.5rem 0; padding: .8rem 1.1rem; border-left: 5px solid #228833; background: #F1F7F2; }}
.verdict.bad {{ border-color: #CC3311; background: #FDF1EE; }}
img {{ display: block; width: 100%; height: auto; margin: .75rem 0; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .45rem .7rem; border-bottom: 1px solid #E4E4E4; text-align: right; white-space: nowrap; }}
th {{ color: #555; font-weight: 600; white-space: normal; vertical-align: bottom; }}
th:first-child, td:first-child {{ text-align: left; }}
td.bad {{ color: #CC3311; font-weight: bold; }}
dt {{ font-weight: 600; margin-top: .8rem; }}
dd {{ margin: 0; max-width: 44rem; }}
code {{ background: #F3F4F6; padding: .1em .35em; border-radius: 4px; font-size: .9em; }}
footer {{ margin-top: 3rem; color: #777; font-size: .85rem; }}
</style>
</head>
<body>
<h1>One model, {count} ways to train it</h1>
<p class="lead">A small GPT ({parameters:,} parameters) learned to predict the next piece of a word of the King James
Bible for {steps} steps, {tokens:,} tokens each, once per strategy: from the same first weights, on the same text, in
the same order.</p>
<div class="verdict{bad}">{verdict}</div>

<h2>What you just saw</h2>
<p>A <em>rank</em> is one process of a job that trains a single model together. Each strategy divides the work and the
memory among its ranks in another way, and pays for that in messages. What it may not do is change the result: split
over ranks or not, it is the same training. That is why every lesson of the course is checked against one process, and
why the curves below lie on each other. Only a mixture of experts is another model: it has a curve of its own, and is
checked against one process that trains it.</p>
<img alt="Loss of every strategy over the steps, and its distance from the yardstick" src="{losses}">
<div class="scroll">{table}</div>

<h2>What each strategy did</h2>
<dl>{explanations}</dl>

<h2>Memory: what a rank has to hold</h2>
<p>Plain data parallelism (all-reduce, DDP) divides only the activations, the intermediate results that forward keeps
for backward: they grow with the rows a rank works on. Parameters, gradients and optimiser state every rank holds in
full. ZeRO and FSDP shard those as well: stage 1 the optimiser state, stage 2 also the gradients, stage 3 and FSDP
also the parameters, which are gathered for one layer at a time. The bytes are counted tensor by tensor, at the
fullest moment of a step, and come out the same in every run. Gradients and activations are never all there at once,
so a bar shows what that one moment held.</p>
<img alt="Peak memory of a rank by kind" src="{memory}">

<h2>Traffic: what a rank has to send</h2>
<p>To average gradients, a ring of N ranks sends 2&nbsp;(N−1)/N times their bytes from each rank, and no algorithm
gets by with less. For this model on {most_ranks} ranks that is {predicted:.2f}&nbsp;MiB per step. Where the
parameters are sharded they travel too, once for forward and once for backward: half as much again. Predict first,
then measure: the bars were counted, the dotted line was calculated.</p>
<img alt="Bytes that a rank sends in one step" src="{traffic}">

<h2>Speed: read it with care</h2>
<p>{processors} Memory and traffic above are exact, and the same on every machine; speed belongs to this machine
and this minute.</p>
<img alt="Tokens per second of all ranks together" src="{speed}">

<h2>One process alone: what a single device still has to give</h2>
<p>Before a job is split it should be fast where it is. The same losses again, on one process and a longer sequence:
each line changes one thing and builds on the fastest line before it. A change that does not pay on this machine stays
in the picture, and the next one does without it.</p>
{ladder}
<dl>{rungs}</dl>

<h2>What to do next</h2>
<ul>{next}</ul>

<footer>{footer}</footer>
</body>
</html>
"""

LADDER = '<img alt="Step time and peak memory of one process, one change at a time" src="{source}">'

PROCESSORS = {
    "cpu": "Every rank computes on one core of this machine's {cores}: more ranks than cores take turns, and messages "
    "go through memory instead of a network.",
    "cuda": "Every rank has a GPU of its own; a model as small as this one keeps none of them busy.",
}


def render(
    outcomes: Sequence[Outcome],
    rungs: Sequence[Rung],
    job: Job,
    tolerance: float,
    predicted_bytes: int,
    verdict: str,
    agree: bool,
) -> str:
    """The page for these outcomes and rungs; the first of each is the yardstick."""
    facts = evidence()
    yardstick = outcomes[0]
    machine, versions = facts["machine"], facts["versions"]
    pictures = draw_all(outcomes, rungs, tolerance, predicted_bytes)
    pictures["ladder"] = LADDER.format(source=pictures["ladder"]) if "ladder" in pictures else ""
    return PAGE.format(
        **pictures,
        count=len(outcomes),
        parameters=job.config.parameters,
        steps=job.steps,
        tokens=job.tokens_per_step,
        bad="" if agree else " bad",
        verdict=escape(verdict),
        table=table(outcomes, tolerance),
        explanations="".join(explanation(outcome) for outcome in outcomes),
        rungs="".join(explain_rung(rung) for rung in rungs),
        predicted=predicted_bytes / MIB,
        most_ranks=max(outcome.strategy.ranks for outcome in outcomes),
        processors=PROCESSORS[yardstick.device].format(cores=machine["cores"]),
        next="".join(f"<li>{words} <code>{escape(command)}</code></li>" for words, command in next_steps()),
        footer=escape(
            f"{facts['time']} · {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB · "
            f"{machine['system']} · Python {versions['python']}, torch {versions['torch']} · "
            f"commit {facts['commit'] or 'unknown'} · {facts['command']}"
        ),
    )


def table(outcomes: Sequence[Outcome], tolerance: float) -> str:
    """The numbers of all strategies."""
    names = ("strategy", "ranks", "last loss (nats)", "largest difference", "tokens/s")
    names += ("peak memory per rank (MiB)", "sent per rank and step (MiB)")
    rows = []
    for outcome, yardstick in zip(outcomes, yardsticks(outcomes), strict=True):
        difference = outcome.difference(yardstick)
        cells = (
            f"<td>{escape(outcome.strategy.name)}</td>",
            f"<td>{outcome.strategy.ranks}</td>",
            f"<td>{outcome.losses[-1]:.5f}</td>",
            f"<td{'' if difference <= tolerance else ' class=bad'}>{write_difference(difference)}</td>",
            f"<td>{outcome.tokens_per_second:,.0f}</td>",
            f"<td>{outcome.peak_bytes / MIB:.1f}</td>",
            f"<td>{outcome.sent_bytes / MIB:.2f}</td>",
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def explanation(outcome: Outcome) -> str:
    """What a strategy does, in its own words, and the lesson that builds it."""
    where = ""
    if outcome.strategy.lesson:
        taught = lesson(outcome.strategy.lesson)
        where = f" You build it in lesson {taught.id}, <code>{taught.lab.relative_to(taught.root)}</code>."
    name, words = escape(outcome.strategy.name), escape(outcome.strategy.explanation)
    return f"<dt>{name}</dt><dd>{words}{where}</dd>"


def explain_rung(rung: Rung) -> str:
    """What a rung changes, and why there are no numbers if there are none."""
    without = f" Left out here: {rung.skipped}." if rung.skipped else ""
    return f"<dt>{escape(rung.name)}</dt><dd>{escape(rung.words + without)}</dd>"
