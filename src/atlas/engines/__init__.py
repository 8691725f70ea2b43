"""Where clients run; each engine answers `Transport.ask`."""
