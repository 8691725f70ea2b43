"""Who is like whom: fingerprints taken, compared and grouped, for few clients or many."""
