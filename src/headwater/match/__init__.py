"""The one filter language over JSON and BSON data (docs/MATCH.md): `compile` a match once, then use its `Matcher`.

`language` reads a match and refuses what is wrong or too large, `values` compares, `matcher` runs it over documents
and over the data of whole batches.
"""

from headwater.match.language import parse
from headwater.match.matcher import Matcher, compile

__all__ = ["Matcher", "compile", "parse"]
