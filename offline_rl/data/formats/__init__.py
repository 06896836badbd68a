"""The layouts of data files. A layout is recognized by a file's content, never by its name.

Each module is a layout, or several similar ones, and defines

    NAME     its name in errors
    TAKES    the `ReadOptions` that it supports besides those of actions; others are refused
    mismatch   return why a file is not of this layout; None if it is
    MARKS    optional: arrays that a file must have to be recognized without `format=`
    FORMAT_NAMES  optional: the values of `format=` that select it; default: the module's name
    parse    return the arrays by our names. Report each array that cannot be read if the others
             still can be checked; otherwise raise UserError

docs/reference/formats.md describes the mapping of each layout and what is lost.
"""
