"""Where logs are kept: the local log, a directory that several processes share. `disk` alone touches the disk."""
