"""The report: every figure that has been run, and every claim of the papers beside what was measured."""
