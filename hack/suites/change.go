// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
)

const module = "github.com/drover-io/drover"

// affectedSuites returns the suites that the change can affect, each with the first file that can.
// Where the history does not have the last tested commit, that is all of them.
func affectedSuites(ctx context.Context, out io.Writer, since string) (map[string]string, error) {
	base, changed, err := change(ctx, since)
	if err != nil {
		return nil, err
	}
	if base == "" {
		fmt.Fprintln(out, "suites: this clone has no commit to compare with, so the change can affect every suite")
	} else {
		fmt.Fprintf(out, "suites: %d files changed since %.12s\n", len(changed), base)
	}
	folders, err := importedFolders(ctx)
	if err != nil {
		return nil, err
	}
	affected := map[string]string{}
	for _, s := range suites {
		if base == "" {
			affected[s.name] = "everything"
		} else if file := affects(s, folders.of(s), changed); file != "" {
			affected[s.name] = file
		}
	}
	return affected, nil
}

// change returns the last tested commit, and the files that differ from it, committed or not. If
// nothing is known about that commit, base is "".
func change(ctx context.Context, since string) (base string, changed []string, err error) {
	if base, err = lastTested(ctx, since); err != nil || base == "" {
		return "", nil, err
	}
	differ, err := output(ctx, "git", "diff", "--name-only", "--no-renames", base)
	if err != nil {
		return "", nil, err
	}
	untracked, err := output(ctx, "git", "ls-files", "--others", "--exclude-standard")
	if err != nil {
		return "", nil, err
	}
	return base, slices.Concat(strings.Fields(differ), strings.Fields(untracked)), nil
}

// lastTested returns the commit of -since, or else the one where the branch left origin/main, or
// else the one before HEAD, or else "".
func lastTested(ctx context.Context, since string) (string, error) {
	if since != "" {
		return output(ctx, "git", "rev-parse", "--verify", since+"^{commit}")
	}
	head, err := output(ctx, "git", "rev-parse", "HEAD")
	if err != nil {
		return "", err
	}
	if base, err := output(ctx, "git", "merge-base", "HEAD", "origin/main"); err == nil && base != head {
		return base, nil
	}
	if before, err := output(ctx, "git", "rev-parse", "--verify", "--quiet", "HEAD~1"); err == nil {
		return before, nil
	}
	return "", nil
}

// imported has the folders of this module that a package and its tests import, its own included.
// The manager's package has the key ".".
type imported map[string]map[string]bool

// importedFolders asks Go for the imports of the manager and of all suites.
func importedFolders(ctx context.Context) (imported, error) {
	args := []string{"list", "-test", "-f", `{{.ImportPath}},{{join .Deps ","}}`, "."}
	for _, s := range suites {
		for _, p := range s.packages {
			args = append(args, "./"+p)
		}
	}
	text, err := output(ctx, "go", args...)
	if err != nil {
		return nil, err
	}
	all := imported{}
	for line := range strings.Lines(text) {
		paths := strings.Split(strings.TrimSpace(line), ",")
		key, ours := folder(strings.TrimSuffix(paths[0], ".test"))
		if !ours {
			continue
		}
		if all[key] == nil {
			all[key] = map[string]bool{}
		}
		for _, path := range paths {
			if dir, ours := folder(path); ours {
				all[key][dir] = true
			}
		}
	}
	return all, nil
}

// of returns the folders that a suite imports, with those of the manager if it runs it.
func (all imported) of(s suite) map[string]bool {
	folders := map[string]bool{}
	for _, p := range s.packages {
		maps.Copy(folders, all[p])
	}
	if !s.noManager {
		maps.Copy(folders, all["."])
	}
	return folders
}

// folder returns the folder of a package of this module. Go lists a package that is compiled again
// for the tests of another one as "path [other.test]".
func folder(path string) (dir string, ours bool) {
	path, _, _ = strings.Cut(path, " ")
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// output runs a command and returns what it prints, without the space around it.
func output(ctx context.Context, name string, args ...string) (string, error) {
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(text)), nil
}
