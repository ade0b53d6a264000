"""The values that cross from reading to judging to reporting. Frozen, numpy only, no I/O.

source -> reader -> Log -> assemble -> **Run** -> detect -> rules -> **Analysis** -> report

NaN is data, absence is absence: a step that was not logged is missing from that series' own `steps`;
a NaN in `values` was logged as NaN.

Each is imported from its module: a command loads those it needs, a millisecond for every class.
"""
