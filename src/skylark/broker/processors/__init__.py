"""One file for each conversation: typed requests in, typed responses out."""
