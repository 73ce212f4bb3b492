"""Training steps of a run again: from the log or from a dump, to compare, to look into, or to try another loss."""
