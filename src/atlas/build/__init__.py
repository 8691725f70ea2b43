"""From settings to objects; the only folder that knows both."""
