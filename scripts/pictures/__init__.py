"""The pictures of the documents, drawn from real runs of the agent in the lab."""
