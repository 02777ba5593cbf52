"""Files, locks, maps, futexes and the clock: the only room that touches the operating system's files."""
