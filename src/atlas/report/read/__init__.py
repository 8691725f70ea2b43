"""What pictures and tables read from events and results."""
