"""The command line: the same verbs as the library, one file per command."""
