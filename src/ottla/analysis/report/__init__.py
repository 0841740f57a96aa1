"""The report of an analysis (`model`), for a terminal (`text`) and as one HTML file with a picture (`html`)."""
