# A shell script that subtracts instead of adding, tested by a target of a Makefile.
# command: make test
cat > add.sh <<'END'
echo $(($1 - $2))
END
cat > check.sh <<'END'
test "$(sh ./add.sh 2 3)" = 5 && test "$(sh ./add.sh 4 0)" = 4
END
cat > settings.mk <<'END'
SHELL_PROGRAM = sh
END
cat > Makefile <<'END'
include settings.mk

.PHONY: test

test:
	$(SHELL_PROGRAM) ./check.sh
END
