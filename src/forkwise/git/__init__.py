"""Git repositories: directories, references and objects. The only package that runs git."""
