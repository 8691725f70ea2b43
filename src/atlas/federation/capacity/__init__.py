"""What training takes on a device, and the ranks granted within it."""
