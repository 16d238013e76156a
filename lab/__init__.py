"""The workbench: builds the operator three ways, measures it, explains it. It is not shipped."""
