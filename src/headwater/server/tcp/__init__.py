"""The protocol over TCP (docs/PROTOCOL.md): frames of BSON on the log, topics and documents that HTTP serves too."""
