"""Work that may take long: whether it is to go on, calls in threads, copies, forks, and what is open around it."""
