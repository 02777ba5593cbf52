"""What a log in a directory and a log in a bucket share: the protocol of one log, reads, appends, open topics."""
