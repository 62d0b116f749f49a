"""`muster.local` from Python: `jobs` starts them, each as a process of its own (`child`), `result`
is what came of one, `testing` is for pytest."""
