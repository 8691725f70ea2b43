"""From W to what clients hold: relate, apply, deliver."""
