"""The tests. A package of its own, because a judge among the dependencies installs one of this name, too."""
