"""What a memory computes: the rule, its state, its precision, and the loop that defines it."""
