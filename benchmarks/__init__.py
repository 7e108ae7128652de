"""Side by side with tensorflow-cpu in one process: medians of alternating rounds, printed as ratios."""
