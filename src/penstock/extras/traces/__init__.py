"""Agent traces: sessions of coding agents as conversations.  The page next to this file says more."""
