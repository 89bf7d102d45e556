"""The labs of a small course, and code that a student may have written."""

SUMS, PRODUCTS, SPLITS = "day1_small/sums.py", "day1_small/products.py", "day2_big/splits.py"
CODE = b"def double(x):\n    return 2 * x\n"

SYLLABUS = """
[[day]]
slug = "day1_small"
title = "A small day"

[[day.lesson]]
id = "1.1"
slug = "sums"
title = "Sums"
hours = 1
status = "ready"

[[day.lesson]]
id = "1.2"
slug = "products"
title = "Products"
hours = 1
status = "ready"

[[day]]
slug = "day2_big"
title = "A big day"

[[day.lesson]]
id = "2.1"
slug = "splits"
title = "Splits"
hours = 1
status = "ready"
"""
