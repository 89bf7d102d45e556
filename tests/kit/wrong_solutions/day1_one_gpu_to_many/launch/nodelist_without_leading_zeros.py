"""FAILS: expand_nodelist, meeting_point

gpu08 becomes gpu8, a host that does not exist.
"""


def expand_nodelist(nodelist):
    if not nodelist.strip() or set("[]") & set(re.sub(r"\[[\d,-]+\]", "", nodelist)):
        raise ValueError(f"{nodelist!r} is no list of nodes")
    hosts = []
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodelist):
        parts = re.split(r"\[(.*?)\]", name)
        choices = [[str(int(number)) for number in numbers(part)] if i % 2 else [part] for i, part in enumerate(parts)]
        hosts += ["".join(choice) for choice in itertools.product(*choices)]
    return hosts
