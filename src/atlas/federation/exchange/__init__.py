"""What travels between server and clients, how, and what is refused."""
