// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// commit is set at build time, as the version is. A build without it has what Go has seen of git.
var commit = ""

// versions are those of the command and of the managers.
type versions struct {
	Version  string           `json:"version"`
	Commit   string           `json:"commit,omitempty"`
	Go       string           `json:"go"`
	Platform string           `json:"platform"`
	Managers []managerVersion `json:"managers,omitempty"`
}

// managerVersion is what the Deployment of a manager says.
type managerVersion struct {
	Namespace  string `json:"namespace"`
	Deployment string `json:"deployment"`
	Version    string `json:"version"`
	Image      string `json:"image"`
}

// newVersionCommand returns the command "drover version".
func newVersionCommand() *cobra.Command {
	var (
		management management
		output     format
	)
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this command and of the manager",
		Long: `Print the version of this command, and that of the manager, from the image of its Deployment: if there is a management
cluster, and you may read the Deployment.`,
		Example: `  drover version
  drover version -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := ownVersions()
			if c, _, err := management.connect(); err == nil {
				ctx, stop := context.WithTimeout(cmd.Context(), versionTimeout)
				defer stop()
				v.Managers = managerVersions(ctx, c)
			}
			return output.print(cmd.OutOrStdout(), v, func() error { return v.print(cmd.OutOrStdout()) })
		},
	}
	management.addFlags(cmd.Flags())
	output.addFlag(cmd)
	return cmd
}

// versionTimeout limits the wait for a management cluster, which may be away.
const versionTimeout = 10 * time.Second

func ownVersions() *versions {
	v := &versions{Version: version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok || commit != "" {
		return v
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Commit = s.Value + v.Commit
		case s.Key == "vcs.modified" && s.Value == "true":
			v.Commit += " (modified)"
		}
	}
	return v
}

func managerVersions(ctx context.Context, c client.Reader) (found []managerVersion) {
	for _, d := range managers(ctx, c) {
		if container := managerContainer(&d); container != nil {
			found = append(found, managerVersion{d.Namespace, d.Name, versionOf(container.Image), container.Image})
		}
	}
	return found
}

// versionOf returns the tag of an image, or its digest if it has no tag.
func versionOf(image string) string {
	name, digest, _ := strings.Cut(image, "@")
	if _, tag, ok := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":"); ok {
		return tag
	}
	return digest
}

func (v *versions) print(out io.Writer) error {
	fmt.Fprintf(out, "drover: %s\n", v.Version)
	if v.Commit != "" {
		fmt.Fprintf(out, "commit: %s\n", v.Commit)
	}
	_, err := fmt.Fprintf(out, "go: %s\nplatform: %s\n", v.Go, v.Platform)
	for _, m := range v.Managers {
		_, err = fmt.Fprintf(out, "manager: %s (Deployment %s/%s)\n", m.Version, m.Namespace, m.Deployment)
	}
	return err
}
