"""The sections of a page, one file for each of what there is to see."""
