"""Training scripts for the bundled models; not part of the installed package."""
