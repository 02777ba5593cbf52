"""How fast a log in a bucket is, beside the bare requests that it is made of, to the same server in the same run."""
