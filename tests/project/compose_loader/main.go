// Command composeloader loads one compose file as `docker compose` would and prints the normalised
// project as JSON. It reads variables from one env file only, never from its own environment, so
// that a secret which happens to be exported cannot hide that the file does not name it.
//
//	composeloader -env-file .env docker-compose.yaml
//
// Exit 0: the project is on stdout. Exit 1: the reason is on stderr. Exit 2: wrong usage.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	envFile := flag.String("env-file", "", "file with NAME=value lines; the only source of variables")
	flag.Parse()
	if flag.NArg() != 1 || *envFile == "" {
		fmt.Fprintln(os.Stderr, "usage: composeloader -env-file FILE COMPOSE_FILE")
		os.Exit(2)
	}
	project, err := load(context.Background(), flag.Arg(0), *envFile)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Stdout.Write(project)
}

// load returns the project with variables filled in, short forms expanded and paths made absolute.
func load(ctx context.Context, composeFile, envFile string) ([]byte, error) {
	options, err := cli.NewProjectOptions(
		[]string{composeFile},
		cli.WithEnvFiles(envFile),
		cli.WithDotEnv,
	)
	if err != nil {
		return nil, err
	}
	project, err := options.LoadProject(ctx)
	if err != nil {
		return nil, err
	}
	return project.MarshalJSON()
}
