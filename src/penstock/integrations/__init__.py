"""Integrations with trainers.  Each module imports its own framework, and nothing else imports the module."""
