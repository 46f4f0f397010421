"""The report: one page with the figures of all finished studies, and the papers' claims with our measurements."""
