"""Plants single mistakes in the source and reports which of them no test notices: `make mutants`."""
