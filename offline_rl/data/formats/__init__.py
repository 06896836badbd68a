"""The layouts that data sets come in, told apart by what a file holds and never by its name.

A module for each family, with

    NAME     what errors call it
    TAKES    the `ReadOptions` beyond the actions' that it reads; another one given is refused
    missed   why a file is not of this layout, None where it is
    MARKS    optional: arrays by which the layout is recognized where `format=` does not name it
    FORMAT_NAMES  optional: the values of `format=` that select it; default: the module's name
    gather   its arrays in our words; a complaint for each one that cannot be had, where the rest
             can still be looked at, and UserError where it cannot

docs/reference/formats.md says what maps to what and what is lost.
"""
