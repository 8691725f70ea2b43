"""Who is near whom: affinities of few clients, sparse edges and rows of many."""
