"""The Spark layer: which Java a session runs on. Importing it imports neither pyspark nor Java."""

from .java import JavaRuntime, find_java, java_environment

__all__ = ["JavaRuntime", "find_java", "java_environment"]
