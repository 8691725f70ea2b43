"""Tables, live display and plots; reads events and run folders, never training itself."""
