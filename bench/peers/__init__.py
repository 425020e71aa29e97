"""The peers: what people do today where forkwise makes a branch. Each says whether it is installed."""
