"""The doctor's findings for a person: a line each, then what to do."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from shardlab.doctor.examine import Check
from shardlab.doctor.finding import Finding

COLOURS = {"works": "green", "limited": "yellow", "missing": "red"}


def report(answers: Iterable[tuple[Check, Finding]], console: Console) -> bool:
    """Prints each finding as it comes, then the commands to run. True when nothing required is missing."""
    seen = []
    for check, finding in answers:
        seen.append((check, finding))
        sign = Text(f"{finding.state:7}", style=COLOURS[finding.state])
        console.print(sign, Text(f" {check.name:18}"), Text(finding.found), soft_wrap=True)
    fixes = [(check, finding.fix) for check, finding in seen if finding.fix]
    if fixes:
        console.print("\nWhat brings the rest, for whoever needs it:", style="bold")
    for check, fix in fixes:
        console.print(Text(f"  {check.name} ({check.serves})"))
        console.print(Text(f"      {fix}", style="cyan"), soft_wrap=True)
    lacking = [check.name for check, finding in seen if check.required and finding.state == "missing"]
    if lacking:
        console.print(Text(f"\nThe course does not run here yet: mend {', '.join(lacking)} first.", style="bold red"))
    else:
        console.print(Text("\nThe course runs here. Next: make tour", style="bold green"))
    return not lacking
