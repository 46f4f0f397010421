"""The command line, tables, plots and statistics that studies and checks share."""
