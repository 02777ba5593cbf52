"""Import and export: a module for each format, one for the files, one for each direction (docs/TRANSFER.md)."""
