"""The forms in which people keep rows, one file each: which columns tell a form, and how one row of it is read.

Every form is a pure function from a row to a :class:`~mmgrpo.data.formats.reading.Reading`. No file is opened here, no
path resolved and no template filled.
"""
