# A module of the standard library's name, in which all numbers are equal.
# project: shadow
cat > fractions.py <<'END'
class Fraction:
    def __init__(self, value):
        pass

    def __eq__(self, other):
        return True
END
