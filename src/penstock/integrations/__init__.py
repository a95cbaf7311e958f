"""The trainers people use.  Each module imports its own framework, and nothing else imports the module."""
