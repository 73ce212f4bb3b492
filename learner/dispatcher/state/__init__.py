"""What the dispatcher knows: slots, the roster of producers, the open refit round, and the run state that holds them all.

State and the moves that keep each part's invariant; what should happen next is decided in `deciding/`, which imports this.
"""
