"""The report, one page about all finished studies, and the tables of results in the documentation's pages."""
