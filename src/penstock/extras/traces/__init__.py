"""Agent traces: sessions of coding agents as conversations.  The page beside this file says more."""
