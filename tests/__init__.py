"""The run-time type checker of the tests: every shape in a signature holds in every test."""

from beartype import BeartypeConf, beartype

#: As type checkers do (PEP 484), an int passes where a float is due.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
