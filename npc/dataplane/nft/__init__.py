"""The parts of ``npc.dataplane.nftables``: what is written, as text; what is read, as a ruleset."""
