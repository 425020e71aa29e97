"""Confinement: what a process in a branch may see and use, as a value. jail_plan.py turns it into a jail."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cache, lru_cache
from glob import glob
from typing import Any, Literal

from forkwise.sandbox.limits import Limits

__all__ = [
    "AGENT_CREDENTIALS",
    "CREDENTIALS",
    "CREDENTIAL_STORES",
    "SAFE_VARIABLES",
    "Confinement",
    "Network",
]

Network = Literal["auto", "host", "none", "private", "proxy"]

#: Where programs keep credentials, by program. ``~`` is each home directory of the user, ``$NAME`` the value of a
#: variable that moves a path, and ``*`` matches within a name. SECURITY.md holds the same table.
CREDENTIAL_STORES: Mapping[str, tuple[str, ...]] = {
    "SSH": ("~/.ssh",),
    "GnuPG": ("~/.gnupg", "$GNUPGHOME"),
    "git": ("~/.git-credentials", "~/.config/git/credentials", "$XDG_CONFIG_HOME/git/credentials"),
    "netrc": ("~/.netrc", "~/_netrc", "$NETRC", "~/.authinfo", "~/.authinfo.gpg"),
    "GitHub, GitLab": (
        "~/.config/gh",
        "$XDG_CONFIG_HOME/gh",
        "$GH_CONFIG_DIR",
        "~/.config/hub",
        "$XDG_CONFIG_HOME/hub",
        "~/.config/glab-cli",
        "$XDG_CONFIG_HOME/glab-cli",
        "$GLAB_CONFIG_DIR",
    ),
    "forkwise": ("~/.config/forkwise/keys.json", "$XDG_CONFIG_HOME/forkwise/keys.json"),
    "AWS": ("~/.aws", "$AWS_SHARED_CREDENTIALS_FILE", "$AWS_CONFIG_FILE", "$AWS_WEB_IDENTITY_TOKEN_FILE"),
    "Azure": ("~/.azure", "$AZURE_CONFIG_DIR"),
    "Google Cloud": (
        "~/.config/gcloud",
        "$XDG_CONFIG_HOME/gcloud",
        "$CLOUDSDK_CONFIG",
        "$GOOGLE_APPLICATION_CREDENTIALS",
        "~/.boto",
        "~/.gsutil",
    ),
    "other clouds": (
        "~/.aliyun",
        "~/.bluemix",
        "~/.cloudflared",
        "~/.config/.wrangler",
        "~/.wrangler",
        "~/.config/configstore",
        "~/.config/doctl",
        "~/.config/hcloud",
        "~/.config/linode-cli",
        "~/.config/netlify",
        "~/.config/openstack",
        "~/.config/scw",
        "~/.databrickscfg",
        "$DATABRICKS_CONFIG_FILE",
        "~/.fly",
        "~/.local/share/com.vercel.cli",
        "~/.local/share/heroku",
        "~/.modal.toml",
        "~/.oci",
        "~/.railway",
        "~/.snowflake",
        "~/.snowsql",
        "~/.supabase",
        "~/.tccli",
    ),
    "Terraform, Pulumi": (
        "~/.terraform.d/credentials.tfrc.json",
        "~/.terraformrc",
        "$TF_CLI_CONFIG_FILE",
        "~/.pulumi/credentials.json",
    ),
    "Docker, Podman": (
        "~/.docker",
        "$DOCKER_CONFIG",
        "~/.dockercfg",
        "~/.config/containers/auth.json",
        "$XDG_CONFIG_HOME/containers/auth.json",
        "$REGISTRY_AUTH_FILE",
    ),
    "Kubernetes": (
        "~/.kube",
        "$KUBECONFIG",
        "~/.minikube",
        "~/.config/helm/registry",
        "$XDG_CONFIG_HOME/helm/registry",
        "~/.config/argocd",
        "~/.rancher",
    ),
    "Ray": ("~/.ray/auth_token", "$RAY_AUTH_TOKEN_PATH"),
    "Vault, SOPS": ("~/.vault-token", "~/.config/sops/age", "$XDG_CONFIG_HOME/sops/age", "$SOPS_AGE_KEY_FILE"),
    "password managers": (
        "~/.config/op",
        "$XDG_CONFIG_HOME/op",
        "~/.config/Bitwarden CLI",
        "~/.password-store",
        "$PASSWORD_STORE_DIR",
        "~/.local/share/gopass",
        "~/.local/share/keyrings",
        "$XDG_DATA_HOME/keyrings",
        "~/.local/share/kwalletd",
        "$XDG_DATA_HOME/kwalletd",
    ),
    "Hugging Face, Kaggle, W&B": (
        "~/.cache/huggingface/token",
        "~/.cache/huggingface/stored_tokens",
        "$XDG_CACHE_HOME/huggingface/token",
        "$XDG_CACHE_HOME/huggingface/stored_tokens",
        "$HF_HOME/token",
        "$HF_HOME/stored_tokens",
        "$HF_TOKEN_PATH",
        "~/.huggingface",
        "~/.kaggle",
        "~/.config/kaggle",
        "$KAGGLE_CONFIG_DIR",
        "~/.config/wandb",
    ),
    "npm, Yarn, Bun": ("~/.npmrc", "$NPM_CONFIG_USERCONFIG", "~/.yarnrc", "~/.yarnrc.yml", "~/.bunfig.toml"),
    "PyPI": (
        "~/.pypirc",
        "~/.config/pypoetry/auth.toml",
        "$XDG_CONFIG_HOME/pypoetry/auth.toml",
        "~/.local/share/uv/credentials",
        "$XDG_DATA_HOME/uv/credentials",
    ),
    "Cargo": ("~/.cargo/credentials.toml", "~/.cargo/credentials", "$CARGO_HOME/credentials.toml"),
    "RubyGems": ("~/.gem/credentials", "~/.local/share/gem/credentials"),
    "Composer": ("~/.composer/auth.json", "~/.config/composer/auth.json", "$COMPOSER_HOME/auth.json"),
    "databases": ("~/.pgpass", "$PGPASSFILE", "~/.pg_service.conf", "$PGSERVICEFILE", "~/.my.cnf", "~/.mylogin.cnf"),
    "storage": ("~/.config/rclone", "$RCLONE_CONFIG", "~/.s3cfg", "~/.mc", "~/.passwd-s3fs", "~/.config/borg/keys"),
    "mail": ("~/.msmtprc", "~/.fetchmailrc", "~/.thunderbird"),
    "browsers": (
        "~/.mozilla",
        "~/.config/google-chrome",
        "~/.config/chromium",
        "~/.config/BraveSoftware",
        "~/.config/microsoft-edge",
        "~/.config/vivaldi",
    ),
    "the machine, for root": (
        "/etc/shadow",
        "/etc/shadow-",
        "/etc/gshadow",
        "/etc/gshadow-",
        "/etc/security/opasswd",
        "/etc/ssh/ssh_host_*_key",
        "/etc/ssl/private",
        "/etc/pki/tls/private",
        "/etc/letsencrypt",
        "/etc/krb5.keytab",
        "/etc/wireguard",
        "/etc/NetworkManager/system-connections",
        "/etc/kubernetes",
        "/etc/rancher",
        "/var/lib/kubelet",
        "/var/lib/rancher",
        "/var/lib/tailscale",
    ),
}

#: Where coding agents keep their logins and keys, by agent. A preset of ``--agent`` sees its own.
AGENT_CREDENTIALS: Mapping[str, tuple[str, ...]] = {
    "claude": ("~/.claude/.credentials.json", "$CLAUDE_CONFIG_DIR/.credentials.json", "~/.claude.json"),
    "codex": ("~/.codex/auth.json", "$CODEX_HOME/auth.json"),
    "gemini": (
        "~/.gemini/oauth_creds.json",
        "~/.gemini/mcp-oauth-tokens.json",
        "~/.gemini/mcp-oauth-tokens-v2.json",
        "~/.gemini/.env",
    ),
    "aider": ("~/.aider/oauth-keys.env", "~/.aider.conf.yml"),
    "opencode": (
        "~/.local/share/opencode/auth.json",
        "~/.local/share/opencode/mcp-auth.json",
        "$XDG_DATA_HOME/opencode/auth.json",
        "$XDG_DATA_HOME/opencode/mcp-auth.json",
    ),
    "goose": ("~/.config/goose/secrets.yaml", "$XDG_CONFIG_HOME/goose/secrets.yaml"),
    "amp": ("~/.local/share/amp/secrets.json",),
    "amazon-q": ("~/.local/share/amazon-q/data.sqlite3", "~/.local/share/kiro-cli/data.sqlite3"),
    "auggie": ("~/.augment/session.json",),
    "cline": ("~/.cline/data/secrets.json",),
    "cn": ("~/.continue/auth.json", "~/.continue/.env"),
    "copilot": ("~/.copilot/config.json", "~/.config/github-copilot", "$XDG_CONFIG_HOME/github-copilot"),
    "crush": ("~/.local/share/crush/crush.json",),
    "cursor": ("~/.config/cursor/auth.json", "~/.cursor/auth.json"),
    "droid": ("~/.factory/auth.json",),
    "kilo": ("~/.local/share/kilo/auth.json",),
    "llm": ("~/.config/io.datasette.llm/keys.json",),
    "mini": ("~/.config/mini-swe-agent/.env",),
    "ollama": ("~/.ollama/id_ed25519",),
    "openhands": ("~/.openhands/agent_settings.json", "~/.openhands/settings.json", "~/.openhands/.jwt_secret"),
    "pi": ("~/.pi/agent/auth.json",),
    "qwen": ("~/.qwen/oauth_creds.json", "~/.qwen/.env"),
    "vibe": ("~/.vibe/.env",),
}

#: Paths of credentials. They are hidden from a sandbox, unless a path is listed as writable or shown.
CREDENTIALS = tuple(path for paths in (*CREDENTIAL_STORES.values(), *AGENT_CREDENTIALS.values()) for path in paths)

#: The variables that ``strict`` passes on, as shell patterns: those that programs need to run and to be built.
SAFE_VARIABLES = (
    *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "PWD", "TMPDIR", "TZ", "CI"),
    *("LANG", "LANGUAGE", "LC_*", "TERM", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR*"),
    *("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"),
    *("FORKWISE_*", "SOURCE_DATE_EPOCH", "MAKEFLAGS", "CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"),
    *("LD_LIBRARY_PATH", "PKG_CONFIG_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHON*", "PYTEST_*"),
    *("NODE_ENV", "NODE_OPTIONS", "NODE_PATH", "JAVA_HOME", "GOPATH", "GOROOT", "GOCACHE", "GOMODCACHE", "GOFLAGS"),
    *("CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "RUSTFLAGS", "GEM_HOME", "GEM_PATH"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
)

#: Names of variables that hold secrets, as shell patterns.
_SECRETS = ("*TOKEN*", "*SECRET*", "*PASSWORD*", "*PASSWD*", "*API_KEY*", "*APIKEY*", "*CREDENTIAL*", "*PRIVATE_KEY*")
_AGENTS = ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "AWS_*", "GOOGLE_*")
_NO_HOMES = ("/dev", "/proc", "/run", "/sys")  # a sandbox has its own, or the kernel's
_PASSWORD_IN_URL = re.compile(r"://[^/\s@]*:[^/\s@]+@")


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a process may see and use. Start from a preset: ``Confinement.open()``, ``.standard()`` or ``.strict()``.

    Files: the workspace's path is the branch. With ``read_only`` the rest of the filesystem is read-only, except
    ``writable`` paths, and ``/tmp`` is the process's own; ``hidden`` paths are empty, except those that are ``shown``.
    Directories and files in ``branched`` are shown as copy-on-write views that belong to the branch: changes to them
    stay there. A path that is also writable is not branched. With ``has_home_view``, the whole home directory is shown
    that way, below all other paths. forkwise's own state is hidden, except for ``readable`` paths in it.

    Network: the ``host``'s, ``none`` at all, or one with its own loopback: ``private`` has an uplink through ``pasta``
    or ``slirp4netns``, ``proxy`` lets TCP out through forkwise's own proxy. The proxy reaches only hosts that match one
    of the globs ``allowed_hosts``, if there are any, and none of ``denied_hosts``. Both reach only the ``host_ports``
    of this machine's loopback, as ports of their own loopback. ``auto`` is ``proxy`` where the machine allows it, and
    else the host's, with a warning; for functions it is the host's.

    Processes: a process sees and signals only those of its sandbox, and all of them end together.

    Environment: the variables in ``passed`` (None: all) and those of ``given``; ``drops_secrets`` leaves out those of
    ``passed`` that look like secrets.

    If namespaces are not available, or mounts in them are refused, that is an error, unless ``landlock_instead`` is
    set: then Landlock confines writes to the branch, which is visible at its own path and not at the workspace's, and
    nothing is hidden.
    """

    name: str = "standard"
    read_only: bool = True
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    branched: tuple[str, ...] = ()
    has_home_view: bool = True
    hidden: tuple[str, ...] = CREDENTIALS
    shown: tuple[str, ...] = ()
    network: Network = "host"
    allowed_hosts: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()
    host_ports: tuple[int, ...] = ()
    passed: tuple[str, ...] | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    drops_secrets: bool = False
    landlock_instead: bool = False
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def open(cls, **changes: Any) -> Confinement:
        """Return a preset with the branch at the workspace's path and no restrictions.

        All processes still end together.
        """
        return replace(cls(name="open", read_only=False, hidden=()), **changes)

    @classmethod
    def standard(cls, **changes: Any) -> Confinement:
        """Return a preset to read everything except credentials, and to write only to the branch and a private /tmp."""
        return replace(cls(), **changes)

    @classmethod
    def strict(cls, **changes: Any) -> Confinement:
        """Return a preset like standard, with no network, few variables of the environment, and fewer system calls."""
        return replace(cls(name="strict", network="none", passed=SAFE_VARIABLES, drops_secrets=True), **changes)

    @classmethod
    def preset(cls, wanted: str | Confinement) -> Confinement:
        """Return a preset by its name; a Confinement is returned as it is."""
        if isinstance(wanted, Confinement):
            return wanted
        presets = {"open": cls.open, "standard": cls.standard, "strict": cls.strict}
        if wanted not in presets:
            raise ValueError(f"there is no confinement {wanted!r}: choose one of {', '.join(presets)}")
        return presets[wanted]()

    def environment(self, of: Mapping[str, str]) -> dict[str, str]:
        """Return the variables a process is started with, out of those of the caller.

        >>> Confinement.strict().environment({"HOME": "/root", "API_TOKEN": "x"})
        {'HOME': '/root'}
        """
        kept = {k: v for k, v in of.items() if self.passed is None or _matches(k, self.passed)}
        if self.drops_secrets:
            kept = {k: v for k, v in kept.items() if not _looks_secret(k, v)}
        if self.read_only:
            for name in ("FORKWISE_LEDGER", "FORKWISE_LEDGER_STORE"):  # its state is hidden, and so is its ledger
                kept.pop(name, None)
        return {**kept, **self.given}

    def hidden_paths(self, environment: Mapping[str, str] | None = None) -> list[str]:
        """Return the hidden paths that exist, except those that are writable, branched or shown.

        ``environment`` is that of the process; if it names a different home directory, that one counts too.
        """
        homes = _find_homes(environment or {})
        shown = [os.path.realpath(path) for path in _expand_paths(self.shown, homes)]
        allowed = {*shown, *self.writable_paths(), *self.branched_paths().values()}
        # A variable may name anything, but the root or a whole home directory is not a credential store.
        never = ("/", *map(os.path.realpath, homes))
        found = dict.fromkeys(os.path.realpath(p) for p in _expand_paths(self.hidden, homes) if os.path.exists(p))
        return [
            path
            for path in found
            if path not in allowed
            and not any(path.startswith(f"{directory}/") for directory in shown)
            and not any(f"{root.rstrip('/')}/".startswith(f"{path.rstrip('/')}/") for root in never)
            and not path.startswith("/dev/")
        ]

    def shown_paths(self, environment: Mapping[str, str] | None = None) -> list[str]:
        """Return the shown paths that exist."""
        paths = _expand_paths(self.shown, _find_homes(environment or {}))
        return [os.path.realpath(path) for path in paths if os.path.exists(path)]

    def find_home(self, environment: Mapping[str, str]) -> str | None:
        """Return the real path of the home directory that the process gets a view of; None if it gets none.

        It is the one that ``environment`` names, or else the account's.
        """
        home = environment.get("HOME") or _find_account_home(str(os.geteuid())) or ""
        if not self.read_only or not self.has_home_view or not os.path.isabs(home):
            return None
        real = os.path.realpath(home)
        is_special = real in ("/", "/tmp", "/var/tmp") or _is_inside_any(real, _NO_HOMES)
        can_read = os.path.isdir(real) and os.access(real, os.R_OK | os.X_OK)
        return None if is_special or not can_read or _is_inside_any(real, self.writable_paths()) else real

    def writable_paths(self) -> list[str]:
        """Return the writable paths, each of which must exist."""
        return [os.path.realpath(os.path.expanduser(p)) for p in self.writable]

    def missing_directories(self) -> dict[str, str]:
        """Return the real paths of the branched directories that do not exist yet, by their absolute paths.

        A path whose name has an extension is a file, and is left to the process. So is a directory inside a writable
        or another branched one.
        """
        paths = list(map(os.path.abspath, map(os.path.expanduser, self.branched)))
        names = {p: os.path.basename(p).lstrip(".") for p in paths if not os.path.lexists(p)}
        reals = {p: os.path.realpath(p) for p, name in names.items() if not os.path.splitext(name)[1]}
        around = {*self.writable_paths(), *self.branched_paths().values(), *reals.values()}
        return {p: real for p, real in reals.items() if not _is_inside_any(real, around - {real})}

    def branched_paths(self) -> dict[str, str]:
        """Return the real paths of the branched paths that exist and are not writable, by their absolute paths."""
        writable = self.writable_paths()
        found = {p: os.path.realpath(p) for p in map(os.path.abspath, map(os.path.expanduser, self.branched))}
        found = {p: real for p, real in found.items() if os.path.exists(real) and not _is_inside_any(real, writable)}
        reals = sorted(set(found.values()))
        outer = {real for real in reals if not _is_inside_any(real, [p for p in reals if p != real])}
        by_real = {real: p for p, real in reversed(found.items()) if real in outer}
        return {p: real for real, p in by_real.items()}


def _is_inside_any(path: str, directories: Iterable[str]) -> bool:
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories)


def _looks_secret(name: str, value: str) -> bool:
    return _matches(name.upper(), _SECRETS + _AGENTS) or _PASSWORD_IN_URL.search(value) is not None


def _find_homes(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the user's home directories: of this process, of ``environment``, of the account, and of sudo's caller."""
    accounts = (_find_account_home(str(os.geteuid())), _find_account_home(os.environ.get("SUDO_UID", "")))
    homes = (os.environ.get("HOME"), environment.get("HOME"), *accounts)
    return tuple(dict.fromkeys(home for home in homes if home and os.path.isabs(home)))


@cache
def _find_account_home(uid: str) -> str | None:
    with suppress(KeyError, ValueError):
        return pwd.getpwuid(int(uid)).pw_dir
    return None


def _expand_paths(paths: tuple[str, ...], homes: tuple[str, ...]) -> list[str]:
    """Expand ``~``, ``$NAME`` and ``*`` in paths. A path whose variable is not set is left out."""
    values = tuple(os.environ.get(name, "") for name in _find_variables(paths))
    expanded = _expand_known(paths, homes, values)
    if not any("*" in path for path in expanded):
        return list(expanded)
    return [match for path in expanded for match in (glob(path) if "*" in path else (path,))]


@cache
def _find_variables(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path[1:].partition("/")[0] for path in paths if path.startswith("$")))


@lru_cache(maxsize=16)
def _expand_known(paths: tuple[str, ...], homes: tuple[str, ...], values: tuple[str, ...]) -> tuple[str, ...]:
    """Expand all but ``*``. ``values`` are those of the variables that the paths name; each may list several paths."""
    variables = dict(zip(_find_variables(paths), values, strict=True))
    expanded: list[str] = []
    for path in paths:
        first, slash, rest = path.partition("/")
        if first == "~":
            expanded += [os.path.join(home, rest) for home in homes]
        elif first.startswith("$"):
            value = variables[first[1:]]
            # A directory's name may contain a colon; only a variable that is a whole path can be a list.
            names = [value] if slash else value.split(":")
            expanded += [os.path.abspath(os.path.join(name, rest) if rest else name) for name in names if name]
        else:
            expanded.append(os.path.abspath(os.path.expanduser(path)))
    return tuple(dict.fromkeys(expanded))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return _compile_patterns(patterns).match(name) is not None


@cache
def _compile_patterns(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Compile shell patterns into one expression, because every command matches every variable."""
    return re.compile("|".join(map(translate, patterns)) if patterns else r"(?!)")
