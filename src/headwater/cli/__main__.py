"""`python -m headwater.cli`, for where the program itself is not on the path."""

from headwater.cli import main

main()
