"""Reports: the result of an analysis as data, as text and as HTML."""
