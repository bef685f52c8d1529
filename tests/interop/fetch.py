"""Fetch and compile the peers, once, before the tests that run them in parallel."""

from java_programs import compiled
from peers import Peers, fetch_examples, fetch_go_client, fetch_node_client

if __name__ == "__main__":
    peers, clients = Peers.fetch(), Peers.fetch_clients()
    fetch_examples(peers)
    for one in (peers, clients):
        for program in ("BrokerPeer", "AdminSession"):
            compiled(one, program)
    fetch_go_client()
    fetch_node_client()
    print(f"Apache's programs are in {peers.folder.parent}")
