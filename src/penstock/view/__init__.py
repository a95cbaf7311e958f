"""A viewer in the browser: records, samples, tokens, the plan and a running job; `server.serve` runs it on this machine."""
