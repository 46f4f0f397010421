"""Bills: the use of functions and machines, and the prices of both."""
