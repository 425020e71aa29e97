# Options that run what failed last, and a cache according to which that was the other test.
sed -i 's/^testpaths.*/addopts = "--lf"/' pyproject.toml
mkdir -p .pytest_cache/v/cache
echo '{"tests/test_calc.py::test_double": true}' > .pytest_cache/v/cache/lastfailed
