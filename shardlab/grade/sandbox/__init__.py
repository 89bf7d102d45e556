"""A sandbox for code nobody has looked at: namespaces, limits, no network, nothing to read and nowhere to write.

Three levels, named in every report: ``full`` (a real user id of its own per slot, and a control group; needs root),
``user`` (user namespaces; an ordinary user), ``none`` (a self-check, from which no marks are exported).
"""
