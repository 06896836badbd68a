"""The layouts of data files. A layout is recognized by a file's content, never by its name.

Each module implements one layout, or several similar ones, and defines

    NAME               name of the layout in errors
    SUPPORTED_OPTIONS  names of the `ReadOptions` that the layout supports, besides the options of
                       actions; other options are refused
    mismatch           function that returns why a file does not have this layout, or else None
    parse              function that returns a `ParsedFile`. It reports each array that cannot be
                       read if the other arrays can still be checked; otherwise it raises UserError
    MARKER_ARRAYS      optional: arrays that a file must have to be recognized without `format=`
    FORMAT_NAMES       optional: values of `format=` that select the layout; by default the module's
                       name

docs/reference/formats.md describes for each layout how its arrays are used, and what is lost.
"""
