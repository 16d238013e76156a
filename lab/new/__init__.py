"""Start an operator of your own: python3 -m lab.new NAME FOLDER --build setup|cmake|jit."""
