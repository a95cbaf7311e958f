"""Which samples, where, when?  Pure index mathematics: numpy only; no files, no clock, no environment, no global random state."""
