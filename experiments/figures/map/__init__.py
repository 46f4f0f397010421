"""The map: on which deployments asynchronous learners win, at equal time and at equal cost."""
