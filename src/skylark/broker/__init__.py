"""The broker: topics, groups and clients around a store."""
