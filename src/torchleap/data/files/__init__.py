"""Files and frames become encoded tasks.

The way of a row through this room:

    open.py        a path or frame is opened as a Source; formats.py lists the formats
    schema.py      the kind of each column is inferred; options.py holds the options of `read`
    raw.py         the first pass writes each column as an array
    learn.py       the second pass learns each column from train rows, and writes it encoded
    encoders/      one encoder per kind of column
    cache.py       the result is kept, so that a file is encoded once
    encoding.py    new rows for a trained model are encoded by what was learned
    inspection.py  what each column holds, and which look wrong

`read.py` puts these steps together.
"""
