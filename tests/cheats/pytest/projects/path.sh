# The same, with a directory of the project at the front of the path.
# command: PATH="$PWD/bin:$PATH"; . ./.env; pytest -q
# extends: script
mkdir bin
echo 'PATH="$PATH:$PWD/.venv/bin"' > .env
