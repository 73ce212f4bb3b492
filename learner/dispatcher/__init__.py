"""The dispatcher process of a learner: gives work to producers, collects groups, answers rank 0.

`state/` is what it knows, `deciding/` what follows from an event (both without I/O), `serving/` the shell around them, and
`takeover/` how a run is claimed, examined and resumed. Imports no torch: it starts while the ranks still load their libraries.
"""
