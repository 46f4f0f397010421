"""Studies in the lab: staleness that is imposed, with hundreds of runs in one program."""
