"""Fetch and compile Apache's programs, once, before the tests that run them in parallel."""

from peers import Peers

if __name__ == "__main__":
    print(f"Apache's programs are in {Peers.fetch().folder}")
