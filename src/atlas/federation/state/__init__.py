"""What a server keeps of very many clients: on disk, mixed a module at a time."""
